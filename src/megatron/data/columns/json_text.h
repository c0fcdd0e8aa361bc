#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::data {

/// Appends `text` as a JSON string. Bytes that are not UTF-8 stay as they are, for the reader of the line to refuse.
void append_json_string(std::string_view text, std::string& out);

/// As append_json_string(), but `null` for bytes that are not UTF-8.
void append_json_bytes(std::string_view text, std::string& out);

void append_json_number(std::int64_t value, std::string& out);
void append_json_number(std::uint64_t value, std::string& out);
/// The shortest text that reads back as `value`; null for what JSON has no number for.
void append_json_number(double value, std::string& out);
void append_json_number(float value, std::string& out);

}  // namespace megatron::data
