#include "megatron/serve/grammar/json_schema.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/percent.h"
#include "megatron/serve/grammar/grammar_builder.h"
#include "megatron/serve/grammar/number_range.h"
#include "megatron/serve/grammar/string_pattern.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;
using Sequence = Grammar::Sequence;

constexpr std::int64_t kMaxCount = 10'000, kMaxMultiple = 1000;
constexpr std::int64_t kMaxUnique = 10;  // with each, twice as many rules
constexpr const char* kUniqueValuesAlone =
    "'uniqueItems' in the schema is supported only where 'items' is an enum of at most 10 values, or booleans";
constexpr int kMaxDepth = 64, kDigits = 15, kExponentDigits = 2, kIndent = 24;

class Compiler {
 public:
  explicit Compiler(GrammarBuilder& grammar) : grammar_(grammar) { build_common(); }

  std::int32_t add(const Ordered& root) {
    root_ = &root;
    return rule_of(root, 0);
  }

 private:
  void build_common() {
    const auto hex = Grammar::bytes(any_byte_of("0123456789abcdefABCDEF"));
    const auto digit = Grammar::bytes(bytes_from('0', '9'));
    const auto after = Grammar::bytes(bytes_from(0x80, 0xBF));
    space_ = grammar_.rule_with(
        {{}, literal(" "), {Grammar::byte('\n'), Grammar::rule(grammar_.repeated(literal(" "), 0, kIndent))}});
    ByteSet plain = bytes_from(0x20, 0x7F);
    plain.reset('"').reset('\\');
    character_ = grammar_.rule_with({
        {Grammar::bytes(plain)},
        {Grammar::bytes(bytes_from(0xC2, 0xDF)), after},
        {Grammar::bytes(bytes_from(0xE0, 0xE0)), Grammar::bytes(bytes_from(0xA0, 0xBF)), after},
        {Grammar::bytes(bytes_from(0xE1, 0xEC) | bytes_from(0xEE, 0xEF)), after, after},
        {Grammar::bytes(bytes_from(0xED, 0xED)), Grammar::bytes(bytes_from(0x80, 0x9F)), after},
        {Grammar::bytes(bytes_from(0xF0, 0xF0)), Grammar::bytes(bytes_from(0x90, 0xBF)), after, after},
        {Grammar::bytes(bytes_from(0xF1, 0xF3)), after, after, after},
        {Grammar::bytes(bytes_from(0xF4, 0xF4)), Grammar::bytes(bytes_from(0x80, 0x8F)), after, after},
        {Grammar::byte('\\'), Grammar::bytes(any_byte_of("\"\\/bfnrt"))},
        {Grammar::byte('\\'), Grammar::byte('u'), Grammar::bytes(any_byte_of("0123456789abcefABCEF")), hex, hex, hex},
        {Grammar::byte('\\'), Grammar::byte('u'), Grammar::bytes(any_byte_of("dD")),
         Grammar::bytes(bytes_from('0', '7')), hex, hex},
    });
    string_ = string_of(0, -1);
    const std::int32_t whole = grammar_.rule_with(
        {literal("0"),
         {Grammar::bytes(bytes_from('1', '9')), Grammar::rule(grammar_.repeated({digit}, 0, kDigits - 1))}});
    integer_ = grammar_.rule_with({{Grammar::rule(whole)}, {Grammar::byte('-'), Grammar::rule(whole)}});
    const std::int32_t fraction = grammar_.rule_with(
        {{}, {Grammar::byte('.'), digit, Grammar::rule(grammar_.repeated({digit}, 0, kDigits - 1))}});
    const std::int32_t sign = grammar_.rule_with({{}, literal("+"), literal("-")});
    const std::int32_t exponent =
        grammar_.rule_with({{},
                            {Grammar::bytes(any_byte_of("eE")), Grammar::rule(sign), digit,
                             Grammar::rule(grammar_.repeated({digit}, 0, kExponentDigits - 1))}});
    number_ = grammar_.rule_with({{Grammar::rule(integer_), Grammar::rule(fraction), Grammar::rule(exponent)}});
    boolean_ = grammar_.rule_with({literal("true"), literal("false")});
    null_ = grammar_.rule_with({literal("null")});
    value_ = grammar_.add_rule();
    const std::int32_t object = object_of_any(value_, 0, -1), array = array_of(value_, 0, -1);
    object_ = object;
    for (const std::int32_t kind : {string_, number_, boolean_, null_, object, array})
      grammar_.add(value_, {Grammar::rule(kind)});
    array_ = array;
  }

  std::int32_t string_of(std::int64_t least, std::int64_t most) {
    const std::int32_t inside = grammar_.repeated({Grammar::rule(character_)}, least, most);
    return grammar_.rule_with({{Grammar::byte('"'), Grammar::rule(inside), Grammar::byte('"')}});
  }

  Sequence spaced(char c) const { return {Grammar::byte(c), Grammar::rule(space_)}; }

  /// `element`s between brackets, by commas.
  std::int32_t list_of(char open, char close, const Sequence& element, std::int64_t least, std::int64_t most) {
    if (most == 0) return grammar_.rule_with({{Grammar::byte(open), Grammar::byte(close)}});
    const Sequence more = joined({spaced(','), element});
    const std::int32_t rest = grammar_.repeated(more, std::max<std::int64_t>(0, least - 1), most < 0 ? -1 : most - 1);
    std::vector<Sequence> forms;
    if (least == 0) forms.push_back({Grammar::byte(open), Grammar::byte(close)});
    forms.push_back(
        joined({spaced(open), element, {Grammar::rule(rest), Grammar::rule(space_), Grammar::byte(close)}}));
    return grammar_.rule_with(forms);
  }

  std::int32_t array_of(std::int32_t item, std::int64_t least, std::int64_t most) {
    return list_of('[', ']', {Grammar::rule(item)}, least, most);
  }
  std::int32_t object_of_any(std::int32_t value, std::int64_t least, std::int64_t most) {
    return list_of('{', '}', joined({{Grammar::rule(string_)}, spaced(':'), {Grammar::rule(value)}}), least, most);
  }

  /// Listed properties in their order; those that are not required may be left out. `least` to `most` are there; most <
  /// 0: any number.
  std::int32_t object_of(const Ordered& properties, const std::set<std::string>& required, std::int64_t least,
                         std::int64_t most, int depth) {
    std::vector<std::pair<Sequence, bool>> members;
    for (const auto& [name, schema] : properties.items())
      members.emplace_back(
          joined({literal(Ordered(name).dump()), spaced(':'), {Grammar::rule(rule_of(schema, depth))}}),
          required.contains(name));
    // What may follow member i where so many were written before, of which more than these make no difference.
    const std::int64_t count = std::ssize(members);
    const auto last = static_cast<std::size_t>(std::min(count, std::max({std::int64_t{1}, least, most})));
    std::vector<std::int32_t> rules;
    for (std::size_t written = 0; written <= last; ++written) {
      rules.push_back(grammar_.add_rule());
      if (static_cast<std::int64_t>(written) < least) continue;
      grammar_.add(rules.back(), written == 0 ? literal("}") : Sequence{Grammar::rule(space_), Grammar::byte('}')});
    }
    for (std::size_t i = members.size(); i-- > 0;) {
      const auto& [member, needed] = members[i];
      std::vector<std::int32_t> before;
      for (std::size_t written = 0; written <= last; ++written) {
        before.push_back(grammar_.add_rule());
        if (most < 0 || static_cast<std::int64_t>(written) < most)
          grammar_.add(before.back(), joined({written == 0 ? Sequence{Grammar::rule(space_)} : spaced(','),
                                              member,
                                              {Grammar::rule(rules[std::min(written + 1, last)])}}));
        if (!needed) grammar_.add(before.back(), {Grammar::rule(rules[written])});
      }
      rules = std::move(before);
    }
    return grammar_.rule_with({{Grammar::byte('{'), Grammar::rule(rules[0])}});
  }

  static std::int64_t count(const Ordered& schema, const char* name, std::int64_t otherwise) {
    const auto at = schema.find(name);
    if (at == schema.end()) return otherwise;
    if (!at->is_number_integer() || at->get<std::int64_t>() < 0 || at->get<std::int64_t>() > kMaxCount)
      refuse_schema(concat("'", name, "' in the schema must be an integer from 0 to ", kMaxCount));
    return at->get<std::int64_t>();
  }

  static bool flag(const Ordered& schema, const char* name) {
    const auto at = schema.find(name);
    if (at == schema.end()) return false;
    if (!at->is_boolean()) refuse_schema(concat("'", name, "' in the schema must be true or false"));
    return at->get<bool>();
  }

  static void check_order(std::int64_t least, std::int64_t most, const char* what) {
    if (most >= 0 && least > most) refuse_schema(concat("no ", what, " is as long as the schema wants it"));
  }

  static void check_keywords(const Ordered& schema) {
    static const std::set<std::string> known = {"type",        "enum",
                                                "const",       "properties",
                                                "required",    "additionalProperties",
                                                "items",       "prefixItems",
                                                "minItems",    "maxItems",
                                                "minLength",   "maxLength",
                                                "pattern",     "format",
                                                "minimum",     "exclusiveMinimum",
                                                "maximum",     "exclusiveMaximum",
                                                "anyOf",       "oneOf",
                                                "allOf",       "$ref",
                                                "multipleOf",  "minProperties",
                                                "uniqueItems", "maxProperties"};
    for (const auto& [name, value] : schema.items())
      if (!known.contains(name) && !has_no_effect(name))
        refuse_schema(concat("'", name.substr(0, 64), "' in the schema is not supported"));
  }

  /// Whether no text depends on a keyword by itself.
  static bool has_no_effect(const std::string& keyword) {
    static const std::set<std::string> silent = {
        "title", "$schema",     "$id",        "$comment", "default",   "description",  "examples",
        "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "discriminator"};
    return silent.contains(keyword);
  }

  /// Nothing that must hold besides `name` is kept.
  static void check_alone(const Ordered& schema, const std::string& name, const std::string& but_for = "") {
    for (const auto& [other, value] : schema.items())
      if (other != name && other != but_for && !has_no_effect(other))
        refuse_schema(concat("'", other.substr(0, 64), "' in the schema is not supported beside '", name, "'"));
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
    refuse_schema(concat("'type' in the schema must be one of JSON's, not ", type.substr(0, 64)));
  }

  /// The names that a schema gives as its type.
  static std::vector<std::string> names_of(const Ordered& type) {
    if (type.is_string()) return {type.get<std::string>()};
    if (!type.is_array() || type.empty()) refuse_schema("'type' in the schema must be a name or a list of names");
    std::vector<std::string> names;
    for (const Ordered& one : type) {
      const auto name = one.is_string() ? one.get<std::string>() : "";
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return names;
  }

  /// A whole number beyond 64 bits was read as the nearest float, which is another number.
  static void check_numbers(const Ordered& value, const std::string& name) {
    if (value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63)
      refuse_schema(concat("'", name, "' in the schema may hold numbers within 64 bits alone"));
    if (value.is_structured())
      for (const Ordered& inner : value) check_numbers(inner, name);
  }

  /// Those of the values that a const or an enum allows that have the schema's type.
  std::int32_t one_of_values(const Ordered& schema, const std::string& name) {
    check_alone(schema, name, "type");
    std::vector<Sequence> values;
    for (const Ordered& value : values_of(schema, name)) values.push_back(literal(value.dump()));
    return grammar_.rule_with(values);
  }

  std::vector<Ordered> values_of(const Ordered& schema, const std::string& name) {
    const Ordered& given = schema.at(name);
    if (name == "enum" && (!given.is_array() || given.empty()))
      refuse_schema("'enum' in the schema must be a list of values");
    grammar_.need_room(given.dump().size());
    check_numbers(given, name);
    const auto type = schema.find("type");
    std::vector<Ordered> values;
    for (const Ordered& value : name == "enum" ? given : Ordered::array({given})) {
      const auto is_it = [&](const std::string& of) { return is_of_type(value, of); };
      if (type == schema.end() || std::ranges::any_of(names_of(*type), is_it)) values.push_back(value);
    }
    if (values.empty()) refuse_schema(concat("no value of '", name, "' in the schema has its 'type'"));
    return values;
  }

  const Ordered& referred(const Ordered& reference) const {
    const std::string path = reference.is_string() ? percent_decoded(reference.get<std::string>()) : "";
    if (!path.starts_with('#')) refuse_schema("'$ref' in the schema must name a part of it: #/$defs/NAME");
    try {
      return root_->at(Ordered::json_pointer(path.substr(1)));
    } catch (const Ordered::exception&) {
      refuse_schema(concat("'$ref' in the schema names what is not there: ", path.substr(0, 200)));
    }
  }

  /// The schema, or that to which its references lead.
  const Ordered* meant(const Ordered& schema) const {
    const Ordered* target = &schema;
    for (int i = 0; target->is_object() && target->contains("$ref"); ++i) {
      check_alone(*target, "$ref");
      if (i > kMaxDepth) refuse_schema("'$ref' in the schema leads back to itself");
      target = &referred(target->at("$ref"));
    }
    return target;
  }

  std::int32_t one_of(const Ordered& list, const char* name, int depth) {
    if (!list.is_array() || list.empty()) refuse_schema(concat("'", name, "' in the schema must be a list of schemas"));
    const std::int32_t number = grammar_.add_rule();
    for (const Ordered& one : list) grammar_.add(number, {Grammar::rule(rule_of(one, depth))});
    return number;
  }

  std::int32_t of_type(const std::string& type, const Ordered& schema, int depth) {
    if (type == "null") return null_;
    if (type == "boolean") return boolean_;
    if (type == "integer" || type == "number") return number_with(schema, type == "integer");
    if (type == "string") return string_with(schema);
    if (type == "array") return array_with(schema, depth);
    if (type == "object") return object_with(schema, depth);
    refuse_type(type);
  }

  static std::optional<NumberBound> bound(const Ordered& schema, const char* name, bool exclusive) {
    const auto at = schema.find(name);
    if (at == schema.end()) return std::nullopt;
    check_numbers(*at, name);
    const auto value = at->is_number() ? decimal_of(at->dump()) : std::nullopt;
    if (!value) refuse_schema(concat("'", name, "' in the schema must be a number of at most 400 digits"));
    return NumberBound{.value = *value, .exclusive = exclusive};
  }

  /// The narrower of a bound and an exclusive one.
  static std::optional<NumberBound> bound_of(const Ordered& schema, const char* name, const char* exclusive_name,
                                             bool least) {
    const auto bound_here = bound(schema, name, false), exclusive = bound(schema, exclusive_name, true);
    if (!bound_here || !exclusive) return bound_here ? bound_here : exclusive;
    const bool wider =
        least ? is_below(exclusive->value, bound_here->value) : is_below(bound_here->value, exclusive->value);
    return wider ? bound_here : exclusive;
  }

  std::int32_t number_with(const Ordered& schema, bool whole) {
    NumberRange range{.least = bound_of(schema, "minimum", "exclusiveMinimum", true),
                      .most = bound_of(schema, "maximum", "exclusiveMaximum", false)};
    const auto multiple = schema.find("multipleOf");
    if (multiple != schema.end()) {
      const auto of = multiple->is_number() ? decimal_of(multiple->dump()) : std::nullopt;
      const bool power = of && of->whole == "0" && of->fraction.find_first_not_of('0') + 1 == of->fraction.size() &&
                         of->fraction.ends_with('1') && of->fraction.size() < kDigits;
      if (!of || of->negative || (of->whole == "0" && of->fraction.empty()))
        refuse_schema("'multipleOf' in the schema must be a number above 0");
      if (power) {
        range.fraction_digits = of->fraction.size();
      } else {
        if (!of->fraction.empty() || of->whole.size() > 4 || std::stoi(of->whole) > kMaxMultiple)
          refuse_schema(
              concat("'multipleOf' in the schema may be 0.1, 0.01, … or a whole number up to ", kMaxMultiple));
        range.multiple = std::stoi(of->whole);
        whole = true;
      }
    }
    if (!range.least && !range.most && multiple == schema.end()) return whole ? integer_ : number_;
    return add_number_range(grammar_, range, whole);
  }

  std::int32_t string_with(const Ordered& schema) {
    const std::int64_t least = count(schema, "minLength", 0), most = count(schema, "maxLength", -1);
    check_order(least, most, "string");
    const auto pattern = schema.find("pattern"), format = schema.find("format");
    if (pattern == schema.end() && format == schema.end())
      return least == 0 && most < 0 ? string_ : string_of(least, most);
    if (pattern != schema.end() && format != schema.end())
      refuse_schema("'format' in the schema is not supported together with 'pattern'");
    const Ordered& said = pattern != schema.end() ? *pattern : *format;
    if (!said.is_string()) refuse_schema("'pattern' and 'format' in the schema must be strings");
    const auto text = said.get<std::string>();
    if (pattern != schema.end()) return add_string_pattern(grammar_, text, least, most);
    const auto of_format = pattern_of_format(text);
    if (!of_format)
      refuse_schema(
          concat("'format' in the schema must be one of date, time, date-time, duration, email, "
                 "hostname, ipv4, ipv6, uuid, not ",
                 text.substr(0, 64)));
    return add_string_pattern(grammar_, *of_format, least, most);
  }

  std::int32_t array_with(const Ordered& schema, int depth) {
    const std::int64_t least = count(schema, "minItems", 0);
    std::int64_t most = count(schema, "maxItems", -1);
    check_order(least, most, "list");
    const auto prefix = schema.find("prefixItems"), items = schema.find("items");
    const bool listed = prefix != schema.end();
    if (listed && (!prefix->is_array() || prefix->empty()))
      refuse_schema("'prefixItems' in the schema must be a list of schemas");
    if (items != schema.end() && *items == Ordered(false)) {
      const auto places = listed ? static_cast<std::int64_t>(prefix->size()) : 0;
      most = most < 0 ? places : std::min(most, places);
      check_order(least, most, "list");
    }
    if (flag(schema, "uniqueItems") && most != 0 && most != 1) {
      if (listed) refuse_schema("'uniqueItems' in the schema is not supported beside 'prefixItems'");
      if (items == schema.end()) refuse_schema(kUniqueValuesAlone);
      return different(items_that_differ(*items), least, most);
    }
    if (items == schema.end() && !listed && least == 0 && most < 0) return array_;
    const std::int32_t item = items == schema.end() || items->is_boolean() ? value_ : rule_of(*items, depth);
    return listed ? tuple_of(*prefix, item, least, most, depth) : array_of(item, least, most);
  }

  /// The values that an element may be, each once.
  std::vector<Ordered> items_that_differ(const Ordered& items) {
    const Ordered& one = *meant(items);
    const bool is_object = one.is_object();
    std::vector<Ordered> values;
    if (is_object) check_keywords(one);
    if (is_object && (one.contains("enum") || one.contains("const"))) {
      const char* const name = one.contains("const") ? "const" : "enum";
      check_alone(one, name, "type");
      values = values_of(one, name);
    } else if (is_object && one.value("type", Ordered()) == "boolean") {
      values = {true, false};
    } else {
      refuse_schema(kUniqueValuesAlone);
    }
    std::vector<Ordered> different;  // 1 and 1.0 are equal
    for (Ordered& value : values)
      if (std::ranges::find(different, value) == different.end()) different.push_back(std::move(value));
    if (std::ssize(different) > kMaxUnique) refuse_schema(kUniqueValuesAlone);
    return different;
  }

  /// Lists of some of the values in any order: a rule for each set of those that are left.
  std::int32_t different(const std::vector<Ordered>& values, std::int64_t least, std::int64_t most) {
    const auto count = std::ssize(values);
    most = most < 0 ? count : std::min<std::int64_t>(most, count);
    check_order(least, most, "list");
    std::vector<Sequence> written;
    for (const Ordered& value : values) written.push_back({Grammar::rule(grammar_.rule_with({literal(value.dump())}))});
    std::vector<std::int32_t> rules(std::size_t{1} << values.size(), -1);  // by what is there
    for (std::size_t there = rules.size(); there-- > 0;) {
      const std::int64_t size = std::popcount(there);
      if (size > most) continue;
      rules[there] = grammar_.add_rule();
      if (size >= least)
        grammar_.add(rules[there], size == 0 ? literal("]") : Sequence{Grammar::rule(space_), Grammar::byte(']')});
      for (std::size_t i = 0; i < written.size() && size < most; ++i)
        if ((there >> i & 1) == 0)
          grammar_.add(rules[there], joined({size == 0 ? Sequence{Grammar::rule(space_)} : spaced(','),
                                             written[i],
                                             {Grammar::rule(rules[there | std::size_t{1} << i])}}));
    }
    return grammar_.rule_with({{Grammar::byte('['), Grammar::rule(rules[0])}});
  }

  /// The first elements have a schema each, the others one.
  std::int32_t tuple_of(const Ordered& first, std::int32_t item, std::int64_t least, std::int64_t most, int depth) {
    const auto places = static_cast<std::int64_t>(first.size());
    const Sequence close = {Grammar::rule(space_), Grammar::byte(']')};
    // What may follow the first i elements, from the last of them on.
    std::int32_t later = grammar_.rule_with(
        {joined({{Grammar::rule(grammar_.repeated(joined({spaced(','), {Grammar::rule(item)}}),
                                                  std::max<std::int64_t>(0, least - places),
                                                  most < 0 ? -1 : std::max<std::int64_t>(0, most - places)))},
                 close})});
    for (std::int64_t i = places; i-- > 0;) {
      std::vector<Sequence> ways;
      if (i >= least) ways.push_back(i == 0 ? literal("]") : close);
      if (most < 0 || i < most)
        ways.push_back(
            joined({i == 0 ? Sequence{Grammar::rule(space_)} : spaced(','),
                    {Grammar::rule(rule_of(first[static_cast<std::size_t>(i)], depth)), Grammar::rule(later)}}));
      later = grammar_.rule_with(ways);
    }
    return grammar_.rule_with({{Grammar::byte('['), Grammar::rule(later)}});
  }

  std::int32_t object_with(const Ordered& schema, int depth) {
    std::set<std::string> required;
    if (const auto names = schema.find("required"); names != schema.end()) {
      if (!names->is_array()) refuse_schema("'required' in the schema must be a list of names");
      for (const Ordered& name : *names) required.insert(name.is_string() ? name.get<std::string>() : "");
    }
    const auto others = schema.find("additionalProperties");
    if (others != schema.end() && !others->is_boolean() && !others->is_object())
      refuse_schema("'additionalProperties' in the schema must be a schema, true or false");
    const auto properties = schema.find("properties");
    const bool listed = properties != schema.end() && !properties->empty();
    if (listed && !properties->is_object()) refuse_schema("'properties' in the schema must be an object");
    for (const std::string& name : required)
      if (!listed || !properties->contains(name))
        refuse_schema(
            concat("'required' in the schema names '", name.substr(0, 64), "', which is not among its properties"));
    const std::int64_t least = count(schema, "minProperties", 0), most = count(schema, "maxProperties", -1);
    check_order(least, most, "object");
    const bool none = others != schema.end() && *others == Ordered(false);
    static const Ordered nothing = Ordered::object();
    if (listed || none) return object_of(listed ? *properties : nothing, required, least, most, depth);
    // What is written twice is one property.
    if (least > 1) refuse_schema("'minProperties' in the schema may be above 1 only where 'properties' lists them");
    const bool any = others == schema.end() || *others == Ordered(true);
    if (any && least == 0 && most < 0) return object_;
    return object_of_any(any ? value_ : rule_of(*others, depth), least, most);
  }

  std::int32_t rule_of(const Ordered& schema, int depth) {
    // A schema that refers to itself is one rule.
    const auto known = rules_.find(&schema);
    if (known != rules_.end()) return known->second;
    const std::int32_t number = grammar_.add_rule();
    rules_[&schema] = number;
    if (depth > kMaxDepth) refuse_schema("the schema is nested too deeply");
    grammar_.add(number, {Grammar::rule(compiled(schema, depth + 1))});
    return number;
  }

  std::int32_t compiled(const Ordered& schema, int depth) {
    if (schema == Ordered(true)) return value_;
    if (!schema.is_object()) refuse_schema("each schema must be an object or true");
    check_keywords(schema);
    if (schema.contains("$ref")) return rule_of(*meant(schema), depth);
    for (const char* name : {"const", "enum"})
      if (schema.contains(name)) return one_of_values(schema, name);
    for (const char* name : {"anyOf", "oneOf"})
      if (const auto at = schema.find(name); at != schema.end()) {
        check_alone(schema, name);
        return one_of(*at, name, depth);
      }
    if (const auto at = schema.find("allOf"); at != schema.end()) {
      check_alone(schema, "allOf");
      if (!at->is_array() || at->size() != 1) refuse_schema("'allOf' in the schema may have one schema");
      return rule_of(at->front(), depth);
    }
    const auto type = schema.find("type");
    if (type == schema.end()) {
      // What is said of one type alone: a text of that type satisfies it.
      static const std::map<std::string, std::string> types = {
          {"properties", "object"},    {"required", "object"},         {"additionalProperties", "object"},
          {"minProperties", "object"}, {"maxProperties", "object"},    {"uniqueItems", "array"},
          {"items", "array"},          {"minItems", "array"},          {"maxItems", "array"},
          {"prefixItems", "array"},    {"minLength", "string"},        {"maxLength", "string"},
          {"pattern", "string"},       {"format", "string"},           {"minimum", "number"},
          {"maximum", "number"},       {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
          {"multipleOf", "number"}};
      for (const auto& [name, of] : types)
        if (schema.contains(name)) return of_type(of, schema, depth);
      return value_;
    }
    const std::vector<std::string> names = names_of(*type);
    if (names.size() == 1) return of_type(names[0], schema, depth);
    std::vector<Sequence> kinds;
    for (const std::string& name : names) kinds.push_back({Grammar::rule(of_type(name, schema, depth))});
    return grammar_.rule_with(kinds);
  }

  const Ordered* root_ = nullptr;
  GrammarBuilder& grammar_;
  std::map<const Ordered*, std::int32_t> rules_;
  std::int32_t space_ = 0, character_ = 0, string_ = 0, integer_ = 0, number_ = 0, boolean_ = 0, null_ = 0, value_ = 0,
               object_ = 0, array_ = 0;
};

}  // namespace

std::vector<std::int32_t> add_schemas(GrammarBuilder& grammar, std::span<const Ordered* const> schemas,
                                      const std::function<ApiError(std::size_t, const ApiError&)>& named) {
  Compiler compiler(grammar);
  std::vector<std::int32_t> rules;
  for (const Ordered* schema : schemas) try {
      rules.push_back(compiler.add(*schema));
    } catch (const ApiError& error) {
      throw named(rules.size(), error);
    }
  return rules;
}

Grammar grammar_of_schema(const Ordered& schema) {
  GrammarBuilder builder;
  const std::int32_t start = builder.add_rule();
  const Ordered* const whole = &schema;
  const auto as_it_is = [](std::size_t, const ApiError& error) { return error; };
  builder.add(start, {Grammar::rule(add_schemas(builder, {&whole, 1}, as_it_is).front())});
  Grammar grammar = builder.take();
  if (grammar.left_recursive()) refuse_schema("'$ref' in the schema leads back to itself");
  if (!grammar.leave_out_endless())
    refuse_schema(
        "no text satisfies the schema: its bounds leave nothing, or its '$ref' asks for the same within itself, "
        "without end");
  return grammar;
}

}  // namespace megatron::serve
