#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/nearest.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/utf8.h"
#include "megatron/config/options.h"
#include "megatron/config/tables/renamed.h"
#include "megatron/config/value.h"

namespace megatron::config {
namespace {

constexpr std::size_t kMaxFile = std::size_t{1} << 20;
/// Each dot of a dotted key nests a table, and the parser's tables are destroyed recursively: this bounds the stack.
constexpr std::ptrdiff_t kMaxDots = 2048;
/// Elements of a list that a fix repeats.
constexpr std::size_t kMaxQuoted = 8;

/// Sets Values from the nodes of a parsed document and gathers what is wrong with it.
class TomlReader {
 public:
  TomlReader(const Fields& fields, const std::string& name) : fields_(fields), name_(name) {
    for (std::size_t i = 0; i < fields.fields.size(); ++i) by_path_.emplace(normalized(fields.fields[i].path), i);
  }

  /// Sections nest as the struct does, so the depth is the struct's whatever the text is.
  void read(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string path = prefix + std::string(key.str());
      const auto found = by_path_.find(normalized(path));
      if (found != by_path_.end())
        value(found->second, path, node);
      else if (old_name(path, node))
        continue;
      else if (const toml::table* inner = node.as_table(); inner != nullptr && is_section(path))
        read(*inner, path + ".");
      else if (is_section(path))
        report(node, path + " must be one table.",
               node.is_array_of_tables() ? concat("a list of tables, [[", path, "]]") : text_of(node),
               concat("[", path, "], and under it its options"));
      else
        unknown(path, node);
    }
  }

  const std::string& errors() const { return errors_; }

  void commit() const {
    for (const auto& [index, found] : pending_) assign(fields_.fields[index].value, found);
  }

 private:
  bool is_section(const std::string& path) const {
    return std::any_of(fields_.sections.begin(), fields_.sections.end(),
                       [&](const Fields::Section& section) { return normalized(section.name) == normalized(path); });
  }

  void value(std::size_t index, const std::string& path, const toml::node& node) {
    const Field& field = fields_.fields[index];
    if (pending_.contains(index))
      return report(node, path + " must be given once.", "it is given again as " + path, "leave one of them out");
    const std::optional<Value> found = std::visit([&](auto* pointer) { return convert(node, *pointer); }, field.value);
    if (!found)
      return report(node, path + " takes " + type_name(field.value) + ".", text_of(node),
                    "such as " + path.substr(path.rfind('.') + 1) + " = " + example_of(field, node));
    if (has_nul(*found))  // names of files, to the system, would end there
      return report(node, path + " must be a string without NUL characters.", printable(text_of(node)),
                    "leave them out");
    pending_.emplace(index, *found);
  }

  static bool has_nul(const Value& value) {
    const auto one = [](const std::string& text) { return text.find('\0') != std::string::npos; };
    if (const auto* text = std::get_if<std::string>(&value)) return one(*text);
    const auto* texts = std::get_if<std::vector<std::string>>(&value);
    return texts != nullptr && std::ranges::any_of(*texts, one);
  }

  /// Whether `path` is an option's name of earlier recipes.
  bool old_name(const std::string& path, const toml::node& node) {
    const Renamed now = renamed(normalized(path), node.value_or(std::string()));
    const auto found = by_path_.find(normalized(now.path));
    if (now.path.empty() || found == by_path_.end()) return false;
    if (pending_.contains(found->second))
      report(node, now.path + " must be given once.", "it is given again as " + path, "leave one of them out");
    else if (now.value.empty())
      report(node, concat(path, " is ", now.path, " now."), text_of(node), "docs/config.md says what it takes");
    else
      pending_.emplace(found->second, Value(now.value));
    return true;
  }

  static std::string text_of(const toml::node& node) {
    std::ostringstream out;
    if (node.is_table() || node.is_array())
      out << (node.is_table() ? "a table" : "an array");
    else
      out << toml::node_view<const toml::node>(node);
    return out.str().substr(0, 100);
  }

  /// A value that the field takes: of strings what was given, in quotes; of numbers its Example; else the present one,
  /// unless that is empty.
  static std::string example_of(const Field& declared, const toml::node& node) {
    const FieldValue& field = declared.value;
    if (std::holds_alternative<double*>(field) && !declared.example.empty()) return declared.example;
    const auto word = [](const toml::node& given) { return given.value<std::string>().value_or(text_of(given)); };
    if (std::holds_alternative<std::string*>(field)) {
      std::string given = node.is_value() ? word(node) : "";
      if (!given.empty()) return toml_value(&given);
    }
    if (std::holds_alternative<std::vector<std::string>*>(field)) {
      std::vector<std::string> given;
      if (const toml::array* list = node.as_array(); list != nullptr && list->size() <= kMaxQuoted)
        for (const toml::node& element : *list)
          if (element.is_value()) given.push_back(word(element));
      if (node.is_value()) given.push_back(word(node));
      return given.empty() ? R"(["a", "b"])" : toml_value(&given);
    }
    const std::string present = toml_value(field);
    return present == "[]" ? "[1, 2]" : present == R"("")" ? R"("text")" : present;
  }

  template <class T>
  static std::optional<T> convert_one(const toml::node& node) {
    if constexpr (std::is_same_v<T, bool>) {
      return node.value_exact<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      return node.value_exact<std::string>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (node.is_integer()) return static_cast<double>(*node.value_exact<std::int64_t>());
      const std::optional<double> number = node.value_exact<double>();
      return number && std::isfinite(*number) ? number : std::nullopt;
    } else {
      if (std::is_same_v<T, std::uint64_t> && node.is_string()) {  // toml_value writes the upper half of the range so
        T number = 0;
        const auto parsed = parse_value(FieldValue(&number), std::vector{*node.value_exact<std::string>()});
        return parsed ? std::optional<T>(std::get<T>(*parsed)) : std::nullopt;
      }
      const std::optional<std::int64_t> number = node.value_exact<std::int64_t>();
      if (!number || !std::in_range<T>(*number)) return std::nullopt;
      return static_cast<T>(*number);
    }
  }

  template <class T>
  static std::optional<Value> convert(const toml::node& node, const T&) {
    const std::optional<T> found = convert_one<T>(node);
    return found ? std::optional<Value>(*found) : std::nullopt;
  }
  template <class T>
  static std::optional<Value> convert(const toml::node& node, const std::vector<T>&) {
    std::vector<T> out;
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) {
        const std::optional<T> found = convert_one<T>(element);
        if (!found) return std::nullopt;
        out.push_back(*found);
      }
    } else if (const std::optional<T> found = convert_one<T>(node)) {  // a list of one
      out.push_back(*found);
    } else {
      return std::nullopt;
    }
    return Value(out);
  }

  void unknown(const std::string& path, const toml::node& node) {
    if (names_.empty()) {
      for (const Field& field : fields_.fields) names_.push_back(field.path);
      for (const Fields::Section& section : fields_.sections) names_.push_back(section.name);
    }
    // What recipes of `megatron finetune` have besides those of other jobs.
    const bool task = path == "task" || path.starts_with("task.");
    const std::string near = task ? "megatron finetune, whose recipe it is" : nearest_path(path);
    report(node, "a recipe's key must be a known option.", path.substr(0, 100),
           near.empty() ? "leave it out; docs/config.md lists all" : near);
  }

  /// In any table where that of the path has none.
  std::string nearest_path(const std::string& path) const {
    const std::string near = nearest_option(path, names_);
    if (!near.empty() || path.find('.') == std::string::npos) return near;
    std::vector<std::string> keys;
    for (const Field& field : fields_.fields) keys.push_back(split_path(field.path).name);
    const std::string key = nearest_option(split_path(path).name, keys);
    const auto at = std::ranges::find(keys, key);
    return key.empty() ? "" : fields_.fields[static_cast<std::size_t>(at - keys.begin())].path;
  }

  void report(const toml::node& node, const std::string& rule, const std::string& got, const std::string& fix = "") {
    errors_ +=
        concat(errors_.empty() ? "" : "\n", name_, ":", node.source().begin.line, ": ", rule_got_fix(rule, got, fix));
  }

  const Fields& fields_;
  const std::string& name_;
  std::map<std::string, std::size_t> by_path_;
  std::map<std::size_t, Value> pending_;
  std::vector<std::string> names_;  // of all, for the first key that is none
  std::string errors_;
};

toml::table parse_toml(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFile || std::count(text.begin(), text.end(), '.') > kMaxDots)
    throw ConfigError(rule_got_fix(concat(name, ": a recipe has at most ", kMaxFile, " bytes and ", kMaxDots, " dots."),
                                   concat(text.size(), " bytes, ", std::count(text.begin(), text.end(), '.'), " dots"),
                                   "name a recipe: a TOML file as in configs/"));
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw ConfigError(rule_got_fix(
        concat(name, ":", error.source().begin.line, ":", error.source().begin.column, ": a recipe must be TOML."),
        std::string(error.description()), "[section] lines, and under them name = value, strings in quotes"));
  }
}

}  // namespace

void read_toml(const Fields& fields, std::string_view text, const std::string& name) {
  TomlReader reader(fields, name);
  reader.read(parse_toml(text, name), "");
  if (!reader.errors().empty()) throw ConfigError(reader.errors());
  reader.commit();
}

std::string set_from_toml_file(const Fields& fields, const std::string& path) {
  TomlReader reader(fields, path);
  reader.read(parse_toml(read_file(path, kMaxFile), path), "");
  reader.commit();
  return reader.errors();
}

void read_toml_file(const Fields& fields, const std::string& path) {
  read_toml(fields, read_file(path, kMaxFile), path);
}

std::string to_toml(const Fields& fields) {
  std::string out;
  const auto write_section = [&](const std::string& name) {
    for (const Field& field : fields.fields)
      if (const PathParts parts = split_path(field.path); parts.section == name) {
        const std::string value = toml_value(field.value);
        if (!valid_utf8(value))
          throw ConfigError(
              rule_got_fix("a recipe's text must be UTF-8.", "--" + field.path + " " + value, "name it in UTF-8"));
        out += parts.name + " = " + value + "\n";
      }
  };
  write_section("");
  for (const Fields::Section& entry : fields.sections) {
    out += concat(out.empty() ? "" : "\n", "[", entry.name, "]\n");
    write_section(entry.name);
  }
  return out;
}

}  // namespace megatron::config
