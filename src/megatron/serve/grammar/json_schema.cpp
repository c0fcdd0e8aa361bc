#include "megatron/serve/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/percent.h"
#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;
using Sequence = Grammar::Sequence;

constexpr std::size_t kMaxSymbols = 200'000;
constexpr std::int64_t kMaxCount = 10'000;
constexpr int kMaxDepth = 64, kDigits = 15, kExponentDigits = 2, kIndent = 24;
constexpr const char* kField = "response_format";

[[noreturn]] void refuse(const std::string& what) { throw ApiError(400, what, kField, "invalid_json_schema"); }

ByteSet range(int from, int to) {
  ByteSet set;
  for (int byte = from; byte <= to; ++byte) set.set(static_cast<std::size_t>(byte));
  return set;
}
ByteSet any_of(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<unsigned char>(c));
  return set;
}

Sequence literal(std::string_view text) {
  Sequence sequence;
  for (const char c : text) sequence.push_back(Grammar::byte(c));
  return sequence;
}

Sequence joined(std::initializer_list<Sequence> parts) {
  Sequence all;
  for (const Sequence& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

class Compiler {
 public:
  explicit Compiler(const Ordered& root) : root_(root) {}

  Grammar compile() {
    const std::int32_t start = grammar_.add_rule();
    build_common();
    grammar_.add(start, {Grammar::rule(rule_of(root_, 0))});
    if (grammar_.left_recursive()) refuse("'$ref' in the schema leads back to itself");
    if (!grammar_.leave_out_endless())
      refuse("no text satisfies the schema: its '$ref' asks for the same within itself, without end");
    return std::move(grammar_);
  }

 private:
  void need_room(std::size_t symbols) const {
    if (grammar_.size() + symbols > kMaxSymbols) refuse("the schema is too large");
  }

  void add(std::int32_t rule, const Sequence& alternative) {
    need_room(alternative.size() + 1);
    grammar_.add(rule, alternative);
  }

  std::int32_t rule_with(const std::vector<Sequence>& alternatives) {
    const std::int32_t number = grammar_.add_rule();
    for (const Sequence& alternative : alternatives) add(number, alternative);
    return number;
  }

  /// Up to `most` of `one`, at least `least`; most < 0: any number.
  std::int32_t repeated(const Sequence& one, std::int64_t least, std::int64_t most) {
    std::int32_t rest;
    if (most < 0) {
      rest = rule_with({{}});
      add(rest, joined({one, {Grammar::rule(rest)}}));
    } else {
      rest = rule_with({{}});
      for (std::int64_t i = least; i < most; ++i) rest = rule_with({{}, joined({one, {Grammar::rule(rest)}})});
    }
    for (std::int64_t i = 0; i < least; ++i) rest = rule_with({joined({one, {Grammar::rule(rest)}})});
    return rest;
  }

  void build_common() {
    const auto hex = Grammar::bytes(any_of("0123456789abcdefABCDEF"));
    const auto digit = Grammar::bytes(range('0', '9'));
    const auto after = Grammar::bytes(range(0x80, 0xBF));
    space_ = rule_with({{}, literal(" "), {Grammar::byte('\n'), Grammar::rule(repeated(literal(" "), 0, kIndent))}});
    ByteSet plain = range(0x20, 0x7F);
    plain.reset('"').reset('\\');
    character_ = rule_with({
        {Grammar::bytes(plain)},
        {Grammar::bytes(range(0xC2, 0xDF)), after},
        {Grammar::bytes(range(0xE0, 0xE0)), Grammar::bytes(range(0xA0, 0xBF)), after},
        {Grammar::bytes(range(0xE1, 0xEC) | range(0xEE, 0xEF)), after, after},
        {Grammar::bytes(range(0xED, 0xED)), Grammar::bytes(range(0x80, 0x9F)), after},
        {Grammar::bytes(range(0xF0, 0xF0)), Grammar::bytes(range(0x90, 0xBF)), after, after},
        {Grammar::bytes(range(0xF1, 0xF3)), after, after, after},
        {Grammar::bytes(range(0xF4, 0xF4)), Grammar::bytes(range(0x80, 0x8F)), after, after},
        {Grammar::byte('\\'), Grammar::bytes(any_of("\"\\/bfnrt"))},
        {Grammar::byte('\\'), Grammar::byte('u'), Grammar::bytes(any_of("0123456789abcefABCEF")), hex, hex, hex},
        {Grammar::byte('\\'), Grammar::byte('u'), Grammar::bytes(any_of("dD")), Grammar::bytes(range('0', '7')), hex,
         hex},
    });
    string_ = string_of(0, -1);
    const std::int32_t whole =
        rule_with({literal("0"), {Grammar::bytes(range('1', '9')), Grammar::rule(repeated({digit}, 0, kDigits - 1))}});
    integer_ = rule_with({{Grammar::rule(whole)}, {Grammar::byte('-'), Grammar::rule(whole)}});
    const std::int32_t fraction =
        rule_with({{}, {Grammar::byte('.'), digit, Grammar::rule(repeated({digit}, 0, kDigits - 1))}});
    const std::int32_t sign = rule_with({{}, literal("+"), literal("-")});
    const std::int32_t exponent = rule_with({{},
                                             {Grammar::bytes(any_of("eE")), Grammar::rule(sign), digit,
                                              Grammar::rule(repeated({digit}, 0, kExponentDigits - 1))}});
    number_ = rule_with({{Grammar::rule(integer_), Grammar::rule(fraction), Grammar::rule(exponent)}});
    boolean_ = rule_with({literal("true"), literal("false")});
    null_ = rule_with({literal("null")});
    value_ = grammar_.add_rule();
    const std::int32_t object = object_of_any(value_), array = array_of(value_, 0, -1);
    object_ = object;
    for (const std::int32_t kind : {string_, number_, boolean_, null_, object, array})
      add(value_, {Grammar::rule(kind)});
    array_ = array;
  }

  std::int32_t string_of(std::int64_t least, std::int64_t most) {
    const std::int32_t inside = repeated({Grammar::rule(character_)}, least, most);
    return rule_with({{Grammar::byte('"'), Grammar::rule(inside), Grammar::byte('"')}});
  }

  Sequence spaced(char c) const { return {Grammar::byte(c), Grammar::rule(space_)}; }

  /// `element`s between brackets, by commas.
  std::int32_t list_of(char open, char close, const Sequence& element, std::int64_t least, std::int64_t most) {
    if (most == 0) return rule_with({{Grammar::byte(open), Grammar::byte(close)}});
    const Sequence more = joined({spaced(','), element});
    const std::int32_t rest = repeated(more, std::max<std::int64_t>(0, least - 1), most < 0 ? -1 : most - 1);
    std::vector<Sequence> forms;
    if (least == 0) forms.push_back({Grammar::byte(open), Grammar::byte(close)});
    forms.push_back(
        joined({spaced(open), element, {Grammar::rule(rest), Grammar::rule(space_), Grammar::byte(close)}}));
    return rule_with(forms);
  }

  std::int32_t array_of(std::int32_t item, std::int64_t least, std::int64_t most) {
    return list_of('[', ']', {Grammar::rule(item)}, least, most);
  }
  std::int32_t object_of_any(std::int32_t value) {
    return list_of('{', '}', joined({{Grammar::rule(string_)}, spaced(':'), {Grammar::rule(value)}}), 0, -1);
  }

  /// Listed properties in their order; those that are not required may be left out.
  std::int32_t object_of(const Ordered& properties, const std::set<std::string>& required, int depth) {
    std::vector<std::pair<Sequence, bool>> members;
    for (const auto& [name, schema] : properties.items())
      members.emplace_back(
          joined({literal(Ordered(name).dump()), spaced(':'), {Grammar::rule(rule_of(schema, depth))}}),
          required.contains(name));
    // What may follow member i, where one was written before and where none was.
    const Sequence close = {Grammar::rule(space_), Grammar::byte('}')};
    std::int32_t later = rule_with({close}), first = rule_with({literal("}")});
    for (std::size_t i = members.size(); i-- > 0;) {
      const auto& [member, needed] = members[i];
      std::vector<Sequence> as_later = {joined({spaced(','), member, {Grammar::rule(later)}})};
      std::vector<Sequence> as_first = {joined({{Grammar::rule(space_)}, member, {Grammar::rule(later)}})};
      if (!needed) {
        as_later.push_back({Grammar::rule(later)});
        as_first.push_back({Grammar::rule(first)});
      }
      later = rule_with(as_later);
      first = rule_with(as_first);
    }
    return rule_with({{Grammar::byte('{'), Grammar::rule(first)}});
  }

  static std::int64_t count(const Ordered& schema, const char* name, std::int64_t otherwise) {
    const auto at = schema.find(name);
    if (at == schema.end()) return otherwise;
    if (!at->is_number_integer() || at->get<std::int64_t>() < 0 || at->get<std::int64_t>() > kMaxCount)
      refuse(concat("'", name, "' in the schema must be an integer from 0 to ", kMaxCount));
    return at->get<std::int64_t>();
  }

  static void check_order(std::int64_t least, std::int64_t most, const char* what) {
    if (most >= 0 && least > most) refuse(concat("no ", what, " is as long as the schema wants it"));
  }

  static void check_keywords(const Ordered& schema) {
    static const std::set<std::string> known = {
        "type",  "enum",     "const",    "properties", "required",  "additionalProperties",
        "items", "minItems", "maxItems", "minLength",  "maxLength", "anyOf",
        "oneOf", "allOf",    "$ref"};
    for (const auto& [name, value] : schema.items())
      if (!known.contains(name) && !has_no_effect(name))
        refuse(concat("'", name.substr(0, 64), "' in the schema is not supported"));
  }

  /// Whether no text depends on a keyword by itself.
  static bool has_no_effect(const std::string& keyword) {
    static const std::set<std::string> silent = {"title",       "$schema",  "$id",   "$comment",    "default",
                                                 "description", "examples", "$defs", "definitions", "deprecated"};
    return silent.contains(keyword);
  }

  /// Nothing that must hold besides `name` is kept.
  static void check_alone(const Ordered& schema, const std::string& name, const std::string& but_for = "") {
    for (const auto& [other, value] : schema.items())
      if (other != name && other != but_for && !has_no_effect(other))
        refuse(concat("'", other.substr(0, 64), "' in the schema is not supported beside '", name, "'"));
  }

  static bool is_of_type(const Ordered& value, const std::string& type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "integer")
      return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    refuse_type(type);
  }

  [[noreturn]] static void refuse_type(const std::string& type) {
    refuse(concat("'type' in the schema must be one of JSON's, not ", type.substr(0, 64)));
  }

  /// The names that a schema gives as its type.
  static std::vector<std::string> names_of(const Ordered& type) {
    if (type.is_string()) return {type.get<std::string>()};
    if (!type.is_array() || type.empty()) refuse("'type' in the schema must be a name or a list of names");
    std::vector<std::string> names;
    for (const Ordered& one : type) names.push_back(one.is_string() ? one.get<std::string>() : "");
    return names;
  }

  /// A whole number beyond 64 bits was read as the nearest float, which is another number.
  static void check_numbers(const Ordered& value, const std::string& name) {
    if (value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63)
      refuse(concat("'", name, "' in the schema may hold numbers within 64 bits alone"));
    if (value.is_structured())
      for (const Ordered& inner : value) check_numbers(inner, name);
  }

  /// Those of the values that a const or an enum allows that have the schema's type.
  std::int32_t one_of_values(const Ordered& schema, const std::string& name) {
    check_alone(schema, name, "type");
    const Ordered& given = schema.at(name);
    if (name == "enum" && (!given.is_array() || given.empty())) refuse("'enum' in the schema must be a list of values");
    need_room(given.dump().size());
    check_numbers(given, name);
    const auto type = schema.find("type");
    std::vector<Sequence> values;
    for (const Ordered& value : name == "enum" ? given : Ordered::array({given})) {
      const auto is_it = [&](const std::string& of) { return is_of_type(value, of); };
      if (type == schema.end() || std::ranges::any_of(names_of(*type), is_it)) values.push_back(literal(value.dump()));
    }
    if (values.empty()) refuse(concat("no value of '", name, "' in the schema has its 'type'"));
    return rule_with(values);
  }

  const Ordered& referred(const Ordered& reference) const {
    const std::string path = reference.is_string() ? percent_decoded(reference.get<std::string>()) : "";
    if (!path.starts_with('#')) refuse("'$ref' in the schema must name a part of it: #/$defs/NAME");
    try {
      return root_.at(Ordered::json_pointer(path.substr(1)));
    } catch (const Ordered::exception&) {
      refuse(concat("'$ref' in the schema names what is not there: ", path.substr(0, 200)));
    }
  }

  std::int32_t one_of(const Ordered& list, const char* name, int depth) {
    if (!list.is_array() || list.empty()) refuse(concat("'", name, "' in the schema must be a list of schemas"));
    const std::int32_t number = grammar_.add_rule();
    for (const Ordered& one : list) add(number, {Grammar::rule(rule_of(one, depth))});
    return number;
  }

  std::int32_t of_type(const std::string& type, const Ordered& schema, int depth) {
    if (type == "null") return null_;
    if (type == "boolean") return boolean_;
    if (type == "integer") return integer_;
    if (type == "number") return number_;
    if (type == "string") {
      const std::int64_t least = count(schema, "minLength", 0), most = count(schema, "maxLength", -1);
      check_order(least, most, "string");
      return least == 0 && most < 0 ? string_ : string_of(least, most);
    }
    if (type == "array") {
      const std::int64_t least = count(schema, "minItems", 0), most = count(schema, "maxItems", -1);
      check_order(least, most, "list");
      const auto items = schema.find("items");
      if (items == schema.end() && least == 0 && most < 0) return array_;
      return array_of(items == schema.end() ? value_ : rule_of(*items, depth), least, most);
    }
    if (type == "object") return object_with(schema, depth);
    refuse_type(type);
  }

  std::int32_t object_with(const Ordered& schema, int depth) {
    std::set<std::string> required;
    if (const auto names = schema.find("required"); names != schema.end()) {
      if (!names->is_array()) refuse("'required' in the schema must be a list of names");
      for (const Ordered& name : *names) required.insert(name.is_string() ? name.get<std::string>() : "");
    }
    const auto others = schema.find("additionalProperties");
    if (others != schema.end() && !others->is_boolean() && !others->is_object())
      refuse("'additionalProperties' in the schema must be a schema, true or false");
    const auto properties = schema.find("properties");
    const bool listed = properties != schema.end() && !properties->empty();
    if (listed && !properties->is_object()) refuse("'properties' in the schema must be an object");
    for (const std::string& name : required)
      if (!listed || !properties->contains(name))
        refuse(concat("'required' in the schema names '", name.substr(0, 64), "', which is not among its properties"));
    if (listed) return object_of(*properties, required, depth);
    if (others == schema.end() || *others == Ordered(true)) return object_;
    if (*others == Ordered(false)) return object_of(Ordered::object(), {}, depth);
    return object_of_any(rule_of(*others, depth));
  }

  std::int32_t rule_of(const Ordered& schema, int depth) {
    // A schema that refers to itself is one rule.
    const auto known = rules_.find(&schema);
    if (known != rules_.end()) return known->second;
    const std::int32_t number = grammar_.add_rule();
    rules_[&schema] = number;
    if (depth > kMaxDepth) refuse("the schema is nested too deeply");
    add(number, {Grammar::rule(compiled(schema, depth + 1))});
    return number;
  }

  std::int32_t compiled(const Ordered& schema, int depth) {
    if (schema == Ordered(true)) return value_;
    if (!schema.is_object()) refuse("each schema must be an object or true");
    check_keywords(schema);
    if (const auto at = schema.find("$ref"); at != schema.end()) {
      check_alone(schema, "$ref");
      const Ordered* target = &referred(*at);
      for (int i = 0; target->is_object() && target->contains("$ref"); ++i) {
        check_alone(*target, "$ref");
        if (i > kMaxDepth) refuse("'$ref' in the schema leads back to itself");
        target = &referred(target->at("$ref"));
      }
      return rule_of(*target, depth);
    }
    for (const char* name : {"const", "enum"})
      if (schema.contains(name)) return one_of_values(schema, name);
    for (const char* name : {"anyOf", "oneOf"})
      if (const auto at = schema.find(name); at != schema.end()) {
        check_alone(schema, name);
        return one_of(*at, name, depth);
      }
    if (const auto at = schema.find("allOf"); at != schema.end()) {
      check_alone(schema, "allOf");
      if (!at->is_array() || at->size() != 1) refuse("'allOf' in the schema may have one schema");
      return rule_of(at->front(), depth);
    }
    const auto type = schema.find("type");
    if (type == schema.end()) {
      // What is said of one type alone: a text of that type satisfies it.
      static const std::map<std::string, std::string> types = {
          {"properties", "object"}, {"required", "object"}, {"additionalProperties", "object"},
          {"items", "array"},       {"minItems", "array"},  {"maxItems", "array"},
          {"minLength", "string"},  {"maxLength", "string"}};
      for (const auto& [name, of] : types)
        if (schema.contains(name)) return of_type(of, schema, depth);
      return value_;
    }
    const std::vector<std::string> names = names_of(*type);
    if (names.size() == 1) return of_type(names[0], schema, depth);
    std::vector<Sequence> kinds;
    for (const std::string& name : names) kinds.push_back({Grammar::rule(of_type(name, schema, depth))});
    return rule_with(kinds);
  }

  const Ordered& root_;
  Grammar grammar_;
  std::map<const Ordered*, std::int32_t> rules_;
  std::int32_t space_ = 0, character_ = 0, string_ = 0, integer_ = 0, number_ = 0, boolean_ = 0, null_ = 0, value_ = 0,
               object_ = 0, array_ = 0;
};

}  // namespace

Grammar grammar_of_schema(const Ordered& schema) { return Compiler(schema).compile(); }

}  // namespace megatron::serve
