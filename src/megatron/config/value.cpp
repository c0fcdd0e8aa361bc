#include "megatron/config/value.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "megatron/base/error.h"

namespace megatron::config {
namespace {

template <class T>
using Pointee = std::remove_pointer_t<T>;

template <class T>
bool parse_one(std::string_view text, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    out = text == "true";
    return text == "true" || text == "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    out = text;
    return true;
  } else {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    if constexpr (std::is_floating_point_v<T>) return std::isfinite(out);
    return true;
  }
}

bool parse_list(std::span<const std::string> words, std::vector<std::string>& out) {
  out.assign(words.begin(), words.end());
  return true;
}

template <class Number>
bool parse_list(std::span<const std::string> words, std::vector<Number>& out) {
  for (std::string_view rest : words) {
    while (!rest.empty()) {
      const std::size_t comma = rest.find(',');
      Number number = 0;
      if (!parse_one(rest.substr(0, comma), number)) return false;
      out.push_back(number);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
      if (rest.empty()) return false;  // a comma at the end
    }
  }
  return true;
}

/// A TOML basic string.
std::string quoted(const std::string& text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += {kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string shortest(double number) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return {buffer.data(), result.ptr};
}

std::string toml_of(bool value) { return value ? "true" : "false"; }
std::string toml_of(int value) { return std::to_string(value); }
std::string toml_of(std::int64_t value) { return std::to_string(value); }
std::string toml_of(std::uint64_t value) {
  const std::string digits = std::to_string(value);  // TOML's integers are signed: larger ones are written as text
  return value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ? quoted(digits) : digits;
}
std::string toml_of(double value) {
  const std::string text = shortest(value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;  // an integer's text would lose the type
}
std::string toml_of(const std::string& value) { return quoted(value); }
template <class T>
std::string toml_of(const std::vector<T>& values) {
  std::string out = "[";
  for (const T& value : values) out += (out.size() > 1 ? ", " : "") + toml_of(value);
  return out + "]";
}

std::string plain_of(bool value) { return toml_of(value); }
std::string plain_of(double value) { return shortest(value); }
std::string plain_of(const std::string& value) { return value; }
template <class T>
std::string plain_of(T value) {
  return std::to_string(value);
}
template <class T>
std::string plain_of(const std::vector<T>& values) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "" : " ") + plain_of(value);
  return out;
}

}  // namespace

bool is_bool(const FieldValue& field) { return std::holds_alternative<bool*>(field); }

bool is_list(const FieldValue& field) {
  return std::holds_alternative<std::vector<std::string>*>(field) ||
         std::holds_alternative<std::vector<std::int64_t>*>(field) ||
         std::holds_alternative<std::vector<double>*>(field);
}

std::string type_name(const FieldValue& field) {
  constexpr std::array kNames = {"true or false",     "an integer",         "an integer",
                                 "an integer >= 0",   "a number",           "a string",
                                 "a list of strings", "a list of integers", "a list of numbers"};
  static_assert(kNames.size() == std::variant_size_v<FieldValue>);
  return kNames[field.index()];
}

std::string metavar(const FieldValue& field) {
  constexpr std::array kNames = {"", "INT", "INT", "INT", "FLOAT", "STRING", "STRING...", "INT...", "FLOAT..."};
  static_assert(kNames.size() == std::variant_size_v<FieldValue>);
  return kNames[field.index()];
}

std::optional<Value> parse_value(const FieldValue& field, std::span<const std::string> words) {
  return std::visit(
      [&](auto* pointer) -> std::optional<Value> {
        Pointee<decltype(pointer)> value{};
        bool ok = false;
        if constexpr (requires { parse_list(words, value); })
          ok = parse_list(words, value);
        else
          ok = words.size() == 1 && parse_one(words[0], value);
        return ok ? std::optional<Value>(std::move(value)) : std::nullopt;
      },
      field);
}

void append(Value& value, const Value& more) {
  const auto extend = [](auto& list, const auto& tail) { list.insert(list.end(), tail.begin(), tail.end()); };
  if (auto* texts = std::get_if<std::vector<std::string>>(&value))
    extend(*texts, std::get<std::vector<std::string>>(more));
  else if (auto* numbers = std::get_if<std::vector<double>>(&value))
    extend(*numbers, std::get<std::vector<double>>(more));
  else
    extend(std::get<std::vector<std::int64_t>>(value), std::get<std::vector<std::int64_t>>(more));
}

void assign(const FieldValue& field, const Value& value) {
  std::visit([&](auto* pointer) { *pointer = std::get<Pointee<decltype(pointer)>>(value); }, field);
}

std::string toml_value(const FieldValue& field) {
  return std::visit([](const auto* pointer) { return toml_of(*pointer); }, field);
}

std::string plain_value(const FieldValue& field) {
  return std::visit([](const auto* pointer) { return plain_of(*pointer); }, field);
}

std::string normalized(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    if (c == '_') c = '-';
  return out;
}

PathParts split_path(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

}  // namespace megatron::config
