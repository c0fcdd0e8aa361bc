#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "megatron/config/options.h"

// Values of options as text.
namespace megatron::config {

/// A value that waits to be assigned: the alternatives of FieldValue, in the same order.
using Value = std::variant<bool, int, std::int64_t, std::uint64_t, double, std::string, std::vector<std::string>,
                           std::vector<std::int64_t>, std::vector<double>>;

bool is_bool(const FieldValue& field);
bool is_list(const FieldValue& field);

/// "an integer", "a list of strings": what a field takes, as messages name it.
std::string type_name(const FieldValue& field);

/// "INT", "FLOAT", "STRING", "STRING..." after an option in --help; "" of a switch.
std::string metavar(const FieldValue& field);

/// Reads words as a value of the field's type: exactly one word for a single value. Nothing where they are none, or a
/// number is out of range or not finite.
std::optional<Value> parse_value(const FieldValue& field, std::span<const std::string> words);

/// Adds the elements of list `more` to list `value`.
void append(Value& value, const Value& more);

void assign(const FieldValue& field, const Value& value);

/// The field's present value as TOML, doubles with the digits that read back to the same bits.
std::string toml_value(const FieldValue& field);

/// The field's present value as one types it on the command line; empty text and lists are "".
std::string plain_value(const FieldValue& field);

/// Name with '-' for '_': two spellings of one option become equal.
std::string normalized(std::string_view name);

/// "parallel.tp" -> {"parallel", "tp"}; "tp" -> {"", "tp"}.
struct PathParts {
  std::string section, name;
};
PathParts split_path(const std::string& path);

}  // namespace megatron::config
