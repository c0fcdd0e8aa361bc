#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/files/text_reader.h"

// Records as they stand in their file: what these tools keep, they write byte for byte.
namespace megatron::corpus {

/// Throws ConfigError for formats whose documents cannot be written one after another: whole files and their pieces.
void check_has_records(const data::TextReaderOptions& options);

/// Appends a record as it stands in its file, its line ended by "\n" ("\n\n" for paragraphs).
/// Throws ConfigError where automatic choice took the file for one whole document.
void append_record(const data::TextBlock& block, std::size_t record, data::TextFormat format, std::string& out);

/// The text of a document in one piece: sentences joined by spaces, in `buffer` where there are several.
std::string_view joined(const std::vector<std::string_view>& texts, std::string& buffer);

/// Where a member of a JSON object stands in its line.
struct Member {
  std::string_view value;  ///< as written, without white space around it
};

/// The last member called `key` of the object that `line` is, any depth below skipped.
/// Made for lines that a JSON parser has accepted; any bytes are safe, and what is no object has no members.
std::optional<Member> find_member(std::string_view line, std::string_view key);

/// The string that a JSON value is; nothing where it is none.
std::optional<std::string> string_value(std::string_view json);

/// `text` as a JSON string with its quotes; what is not UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

/// The object that `line` is with `member`, such as R"("reason": "short")", before its first member.
std::string with_member(std::string_view line, std::string_view member);

}  // namespace megatron::corpus
