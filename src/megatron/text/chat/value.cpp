#include "megatron/text/chat/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/utf8.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

constexpr int kDeepest = 200;  // values within values; a conversation has five levels, a tool's schema ten

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// The characters of a text, which Python counts.
std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> all;
  for_each_character(text, [&](const DecodedChar&, std::size_t begin, std::size_t end) {
    all.push_back(text.substr(begin, end - begin));
  });
  return all;
}

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// repr() of a float.
std::string spelled(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool small = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 small ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  if (small && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void check_data(const Value& value) {
  if (value.kind() > Kind::Dict) refuse(concat("it puts ", value.name(), " into a value"));
}

/// Of a dict, which are no lists or dicts.
bool same_key(const Value& a, const Value& b) {
  JinjaBudget enough(std::numeric_limits<std::size_t>::max());
  return a.equals(b, enough);
}

template <class Call>
void for_each_line(std::string_view text, const Call& take) {
  constexpr std::string_view kEnds[] = {"\r\n", "\n",   "\r",       "\v",           "\f",          "\x1C",
                                        "\x1D", "\x1E", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto* end = std::ranges::find_if(kEnds, [&](auto e) { return text.substr(at).starts_with(e); });
    if (end == std::end(kEnds)) {
      ++at;
      continue;
    }
    take(text.substr(begin, at - begin));
    begin = at += end->size();
  }
  if (begin < text.size()) take(text.substr(begin));
}

/// A text's case is known here for ASCII.
std::string cased(std::string text, const char* of) {
  if (!is_ascii(text)) refuse(concat(of, " of a text beyond ASCII"));
  return text;
}
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
char lower(char c) { return is_upper(c) ? static_cast<char>(c + 32) : c; }
char upper(char c) { return is_lower(c) ? static_cast<char>(c - 32) : c; }

/// slice.indices(): first, count and step.
struct Cut {
  std::int64_t first = 0, count = 0, step = 1;
};
Cut cut_of(std::int64_t size, const Value& from, const Value& to, const Value& step) {
  Cut cut;
  if (!step.is(Kind::None)) cut.step = std::clamp(step.integer("a slice's step"), -size - 1, size + 1);
  if (cut.step == 0) refuse("a slice of step 0");
  const bool back = cut.step < 0;
  const auto bound = [&](const Value& at, std::int64_t missing) {
    if (at.is(Kind::None)) return missing;
    std::int64_t i = at.integer("a slice's bound");
    if (i < 0) i += size;
    return std::clamp<std::int64_t>(i, back ? -1 : 0, back ? size - 1 : size);
  };
  cut.first = bound(from, back ? size - 1 : 0);
  const std::int64_t last = bound(to, back ? -1 : size);
  const std::int64_t length = back ? cut.first - last : last - cut.first;
  cut.count = length <= 0 ? 0 : (length - 1) / std::abs(cut.step) + 1;
  return cut;
}

void quote(std::string& out, std::string_view text) {
  const char mark = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += mark;
  for_each_character(text, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    if (c.code_point == '\n' || c.code_point == '\t' || c.code_point == '\r') {
      out += '\\';
      out += c.code_point == '\n' ? 'n' : c.code_point == '\t' ? 't' : 'r';
    } else if (c.code_point < 0x20 || c.code_point == 0x7F) {
      out += "\\x";
      out += kDigits[c.code_point >> 4];
      out += kDigits[c.code_point & 15];
    } else {
      if (c.code_point > 0x7F && UnicodeClasses::instance().of(c.code_point) != CharClass::Letter &&
          UnicodeClasses::instance().of(c.code_point) != CharClass::Number)
        refuse(concat("it prints a list that holds the character ", text.substr(begin, end - begin)));
      if (c.code_point == '\\' || c.code_point == static_cast<unsigned char>(mark)) out += '\\';
      out += text.substr(begin, end - begin);
    }
  });
  out += mark;
}

void escape_json(std::string& out, std::string_view text, bool ascii) {
  const auto code = [&](std::uint32_t unit) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[unit >> shift & 15];
  };
  out += '"';
  for_each_character(text, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const std::size_t at =
        c.code_point < 0x80 ? kEscaped.find(static_cast<char>(c.code_point)) : std::string_view::npos;
    if (at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (c.code_point < 0x20) {
      code(c.code_point);
    } else if (ascii && c.code_point > 0xFFFF) {
      code(0xD7C0 + (c.code_point >> 10));
      code(0xDC00 + (c.code_point & 0x3FF));
    } else if (ascii && c.code_point >= 0x7F + 1) {
      code(c.code_point);
    } else {
      out += text.substr(begin, end - begin);
    }
  });
  out += '"';
}

class Dumper {
 public:
  Dumper(const JsonDumps& form, JinjaBudget& budget) : form_(form), budget_(budget) {}

  std::string out;

  void dump(const Value& value, int level) {
    budget_.make(8);
    switch (value.kind()) {
      case Kind::None:
        out += "null";
        return;
      case Kind::Bool:
        out += value.truth() ? "true" : "false";
        return;
      case Kind::Int:
        out += std::to_string(value.integer(""));
        return;
      case Kind::Float:
        out += number(value.number(""));
        return;
      case Kind::String:
        budget_.make(value.text("").size());
        escape_json(out, value.text(""), form_.ascii);
        return;
      case Kind::List:
      case Kind::Tuple: {
        bool first = true;
        out += '[';
        for (const Value& item : value.items("tojson")) {
          next(first, level);
          dump(item, level + 1);
        }
        close(first, level, ']');
        return;
      }
      case Kind::Dict:
        return dump(value.mapping(), level);
      default:
        refuse(concat("tojson of ", value.name()));
    }
  }

 private:
  static std::string number(double value) {
    return std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "Infinity" : "-Infinity") : spelled(value);
  }

  void next(bool& first, int level) {
    if (!first) out += form_.between;
    first = false;
    line(level + 1);
  }
  void line(int level) {
    if (!form_.lines) return;
    budget_.make(form_.indent.size() * static_cast<std::size_t>(level));
    out += '\n';
    for (int i = 0; i < level; ++i) out += form_.indent;
  }
  void close(bool empty, int level, char end) {
    if (!empty) line(level);
    out += end;
  }

  void dump(const Value::Mapping& mapping, int level) {
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : mapping.members) members.push_back(&member);
    const auto key_of = [](const auto* member) -> const std::string& { return member->first.text("tojson"); };
    if (form_.sorted) std::ranges::sort(members, {}, key_of);
    bool first = true;
    out += '{';
    for (const auto* member : members) {
      next(first, level);
      budget_.make(key_of(member).size());
      escape_json(out, key_of(member), form_.ascii);
      out += form_.colon;
      dump(member->second, level + 1);
    }
    close(first, level, '}');
  }

  const JsonDumps& form_;
  JinjaBudget& budget_;
};

/// str.split(separator, most), or of white space; from the right with `right`.
Value::Items split(std::string_view text, const std::string* separator, std::int64_t most, bool right) {
  Value::Items parts;
  if (separator != nullptr && separator->empty()) refuse("split at an empty text");
  const auto more = [&] { return most < 0 || std::ssize(parts) < most; };
  if (separator == nullptr) {
    text = python_strip(text, !right, right);
    while (!text.empty()) {
      std::size_t cut = right ? text.size() : 0;  // where the word ends
      const auto blank_at = [&](std::size_t at) {
        return right ? python_strip(text.substr(0, at), false, true).size() != at
                     : python_strip(text.substr(at), true, false).size() != text.size() - at;
      };
      while (cut != (right ? 0 : text.size()) && !blank_at(cut)) cut += right ? -1 : 1;
      if (!more()) cut = right ? 0 : text.size();
      std::string_view word = right ? text.substr(cut) : text.substr(0, cut);
      parts.emplace_back(std::string(word));
      text = python_strip(right ? text.substr(0, cut) : text.substr(cut), !right, right);
    }
  } else {
    for (;;) {
      const std::size_t at = !more() ? std::string_view::npos : right ? text.rfind(*separator) : text.find(*separator);
      if (at == std::string_view::npos) break;
      const std::size_t after = at + separator->size();
      parts.emplace_back(std::string(right ? text.substr(after) : text.substr(0, at)));
      text = right ? text.substr(0, at) : text.substr(after);
    }
    parts.emplace_back(std::string(text));
  }
  if (right) std::ranges::reverse(parts);
  return parts;
}

/// str.format() of the fields {}, {0} and no others.
std::string format_fields(std::string_view text, const Value::Items& arguments, JinjaBudget& budget) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == text[at]) {
      out += text[at++];
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (text[at] == '}' || end == std::string_view::npos) refuse("a format with a single brace");
    const std::string_view field = text.substr(at + 1, end - at - 1);
    std::size_t index = next;
    if (field.empty()) ++next;
    const auto [last, error] = std::from_chars(field.data(), field.data() + field.size(), index);
    if ((!field.empty() && (error != std::errc() || last != field.data() + field.size())) || index >= arguments.size())
      refuse(concat("the field {", field, "} of a format"));
    const std::string part = arguments[index].printed(budget);
    budget.make(part.size());
    out += part;
    at = end;
  }
  return out;
}

bool starts_or_ends(std::string_view text, const Value& part, bool starts) {
  if (part.is(Kind::Tuple))
    return std::ranges::any_of(part.items(""), [&](const Value& one) { return starts_or_ends(text, one, starts); });
  const std::string& wanted = part.text(starts ? "startswith" : "endswith");
  return starts ? text.starts_with(wanted) : text.ends_with(wanted);
}

std::string joined(std::string_view between, const Value& parts, JinjaBudget& budget) {
  std::string out;
  bool first = true;
  for (const Value& part : parts.items("join")) {
    const std::string& text = part.text("join");
    budget.make(text.size() + between.size());
    if (!first) out += between;
    first = false;
    out += text;
  }
  return out;
}

/// Whether a text has characters, and all of them are as Python's isX() says; of ASCII.
bool all_are(const std::string& text, const std::string& name) {
  cased(text, name.c_str());
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto letter = [](char c) { return is_lower(c) || is_upper(c); };
  if (name == "islower" || name == "isupper")
    return std::ranges::any_of(text, letter) && std::ranges::none_of(text, name == "islower" ? is_upper : is_lower);
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (name != "isalpha" && name != "isspace" && digit(c)) ||
           ((name == "isalpha" || name == "isalnum") && letter(c)) ||
           (name == "isspace" && python_strip({&c, 1}).empty());
  });
}

constexpr std::string_view kTextMethods[] = {
    "strip", "lstrip", "rstrip", "startswith", "endswith", "split", "rsplit", "splitlines", "upper", "lower", "title",
    "capitalize", "replace", "join", "find", "rfind", "index", "count", "format", "isdigit", "isdecimal", "isalpha",
    "isalnum", "isspace", "islower", "isupper", "zfill", "removeprefix", "removesuffix", "partition", "rpartition",
    // which Python has and templates do not call
    "casefold", "center", "encode", "expandtabs", "format_map", "isascii", "isidentifier", "isnumeric", "isprintable",
    "istitle", "ljust", "maketrans", "rindex", "rjust", "swapcase", "translate"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kListMethods[] = {"index", "count", "append",  "extend", "insert", "remove",
                                             "pop",   "clear", "reverse", "sort",   "copy"};
constexpr std::string_view kDictMethods[] = {"get", "items",   "keys",   "values",     "copy",    "clear",
                                             "pop", "popitem", "update", "setdefault", "fromkeys"};

template <std::size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

Value text_method(const Value& value, const std::string& name, const Value::Items& arguments, JinjaBudget& budget) {
  const std::string& text = value.text(name);
  const std::size_t count = arguments.size();
  budget.read(text.size());
  budget.make(text.size());
  const auto word = [&](std::size_t i) -> const std::string& { return arguments[i].text(name); };
  const bool has_none = count == 0 || (count == 1 && arguments[0].is(Kind::None));
  if (name.ends_with("strip") && count <= 1)
    return std::string(
        python_strip(text, name != "rstrip", name != "lstrip", has_none ? nullptr : &arguments[0].text(name)));
  if ((name == "startswith" || name == "endswith") && count == 1)
    return starts_or_ends(text, arguments[0], name == "startswith");
  if ((name == "split" || name == "rsplit") && count <= 2) {
    const bool blanks = count == 0 || arguments[0].is(Kind::None);
    return Value::sequence(Kind::List, split(text, blanks ? nullptr : &word(0),
                                             count == 2 ? arguments[1].integer(name) : -1, name == "rsplit"));
  }
  if ((name == "partition" || name == "rpartition") && count == 1) {
    Value::Items parts = split(text, &word(0), 1, name == "rpartition");
    if (parts.size() == 2)
      parts.insert(parts.begin() + 1, arguments[0]);
    else
      parts.insert(name == "partition" ? parts.end() : parts.begin(), 2, std::string());
    return Value::sequence(Kind::Tuple, std::move(parts));
  }
  if (name == "splitlines" && count == 0) return Value::sequence(Kind::List, split_lines(text));
  if (name == "upper" && count == 0) return upper_case(text);
  if (name == "lower" && count == 0) return lower_case(text);
  if (name == "title" && count == 0) return title_case(text);
  if (name == "capitalize" && count == 0) return capitalized(text);
  if (name == "replace" && (count == 2 || count == 3))
    return replaced(text, word(0), word(1), count == 3 ? arguments[2].integer(name) : -1, budget);
  if (name == "join" && count == 1) return joined(text, arguments[0], budget);
  if ((name == "find" || name == "rfind" || name == "index") && count == 1) {
    const std::size_t at = name == "rfind" ? text.rfind(word(0)) : text.find(word(0));
    if (at == std::string::npos && name == "index") refuse("index of a text that is not in it");
    return at == std::string::npos ? std::int64_t{-1} : static_cast<std::int64_t>(character_count({text.data(), at}));
  }
  if (name == "count" && count == 1 && !word(0).empty()) {
    std::int64_t found = 0;
    for (std::size_t at = text.find(word(0)); at != std::string::npos; at = text.find(word(0), at + word(0).size()))
      ++found;
    return found;
  }
  if (name == "format") return format_fields(text, arguments, budget);
  if (name == "removeprefix" && count == 1) return text.starts_with(word(0)) ? text.substr(word(0).size()) : text;
  if (name == "removesuffix" && count == 1)
    return text.ends_with(word(0)) ? text.substr(0, text.size() - word(0).size()) : text;
  if (name == "zfill" && count == 1) {
    const auto size = static_cast<std::int64_t>(character_count(text));
    const bool sign = text.starts_with('-') || text.starts_with('+');
    return text.substr(0, sign ? 1 : 0) +
           repeated("0", std::max<std::int64_t>(0, arguments[0].integer(name) - size), budget) +
           text.substr(sign ? 1 : 0);
  }
  if (name.starts_with("is") && count == 0) return all_are(text, name);
  refuse(concat("the method \"", name, "\" of a text with ", count, " arguments"));
}

}  // namespace

void JinjaBudget::make(std::size_t bytes) {
  if (bytes > left_) refuse("it does more work than any chat needs");
  left_ -= bytes;
}

const JinjaValue* JinjaValue::Mapping::named(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name.is(Kind::String) && name.text("") == key) return &value;
  return nullptr;
}

const JinjaValue* JinjaValue::Mapping::find(const JinjaValue& key) const {
  if (key.is(Kind::String)) return named(key.text(""));
  for (const auto& [name, value] : members)
    if (same_key(name, key)) return &value;
  return nullptr;
}

JinjaValue::JinjaValue(const nlohmann::ordered_json& json) {
  if (json.is_string()) {
    *this = JinjaValue(json.get<std::string>());
  } else if (json.is_boolean()) {
    *this = JinjaValue(json.get<bool>());
  } else if (json.is_number_float()) {
    *this = JinjaValue(json.get<double>());
  } else if (json.is_number()) {
    if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
      refuse("a number above 2^63");
    *this = JinjaValue(json.get<std::int64_t>());
  } else if (json.is_array()) {
    Items items;
    for (const auto& item : json) items.emplace_back(item);
    *this = sequence(Kind::List, std::move(items));
  } else if (json.is_object()) {
    Members members;
    for (const auto& [key, item] : json.items()) members.emplace_back(JinjaValue(key), JinjaValue(item));
    *this = dict(std::move(members));
  } else {
    kind_ = Kind::None;
  }
}

JinjaValue JinjaValue::none() {
  JinjaValue value;
  value.kind_ = Kind::None;
  return value;
}

JinjaValue JinjaValue::safe(std::string text) {
  JinjaValue value(std::move(text));
  value.safe_ = true;
  return value;
}

JinjaValue JinjaValue::sequence(Kind kind, Items items) {
  JinjaValue value;
  auto all = std::make_shared<Sequence>();
  for (const JinjaValue& item : items) {
    check_data(item);
    all->depth = std::max(all->depth, item.depth() + 1);
  }
  if (all->depth > kDeepest) refuse(concat("values nested ", kDeepest, " deep"));
  all->items = std::move(items);
  value.kind_ = kind;
  value.data_ = std::move(all);
  return value;
}

JinjaValue JinjaValue::dict(Members members) {
  JinjaValue value;
  auto all = std::make_shared<Mapping>();
  for (const auto& [key, item] : members) {
    if (key.kind() < Kind::None || key.kind() > Kind::String) refuse(concat("a dict's key that is ", key.name()));
    check_data(item);
    all->depth = std::max(all->depth, item.depth() + 1);
  }
  if (all->depth > kDeepest) refuse(concat("values nested ", kDeepest, " deep"));
  all->members = std::move(members);
  value.kind_ = Kind::Dict;
  value.data_ = std::move(all);
  return value;
}

void JinjaValue::put(Members& members, JinjaValue key, JinjaValue value) {
  for (auto& [name, old] : members)
    if (same_key(name, key)) {
      old = std::move(value);
      return;
    }
  members.emplace_back(std::move(key), std::move(value));
}

JinjaValue JinjaValue::space(Members members) {
  JinjaValue value = dict(std::move(members));
  value.kind_ = Kind::Namespace;
  return value;
}

JinjaValue JinjaValue::loop(std::shared_ptr<const Sequence> items, std::size_t at) {
  JinjaValue value;
  value.kind_ = Kind::Loop;
  value.data_ = std::make_shared<Loop>(Loop{std::move(items), at});
  return value;
}

JinjaValue JinjaValue::callable(const JinjaStatement* macro) {
  JinjaValue value;
  value.kind_ = Kind::Callable;
  value.data_ = macro;
  return value;
}

int JinjaValue::depth() const { return is_list() ? list().depth : kind_ == Kind::Dict ? mapping().depth : 0; }

std::string_view JinjaValue::name() const {
  constexpr std::string_view kNames[] = {
      "what is not defined", "none",   "a boolean",   "a number", "a number",  "a text", "a list", "a tuple", "a view",
      "a generator",         "a dict", "a namespace", "the loop", "a function"};
  return kNames[static_cast<std::size_t>(kind_)];
}

bool JinjaValue::truth() const {
  switch (kind_) {
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
      return std::get<bool>(data_);
    case Kind::Int:
      return std::get<std::int64_t>(data_) != 0;
    case Kind::Float:
      return std::get<double>(data_) != 0;
    case Kind::String:
      return !text("").empty();
    case Kind::List:
    case Kind::Tuple:
    case Kind::View:
      return !list().items.empty();
    case Kind::Dict:
      return !mapping().members.empty();
    default:
      return true;
  }
}

const std::string& JinjaValue::text(std::string_view of) const {
  if (kind_ != Kind::String) refuse(concat(of, " of ", name(), " where a text should be"));
  if (safe_ && !of.empty()) refuse(concat(of, " of a text that the filter \"safe\" went over"));
  return *std::get<std::shared_ptr<const std::string>>(data_);
}

std::int64_t JinjaValue::integer(std::string_view of) const {
  if (kind_ == Kind::Bool) return std::get<bool>(data_) ? 1 : 0;
  if (kind_ != Kind::Int) refuse(concat(of, " of ", name(), " where a whole number should be"));
  return std::get<std::int64_t>(data_);
}

double JinjaValue::number(std::string_view of) const {
  return kind_ == Kind::Float ? std::get<double>(data_) : static_cast<double>(integer(of));
}

JinjaValue::Items JinjaValue::items(std::string_view of) const {
  if (kind_ == Kind::Generator) return std::move(std::get<std::shared_ptr<Sequence>>(data_)->items);
  if (is_list()) return list().items;
  Items all;
  if (kind_ == Kind::Undefined) return all;
  if (kind_ == Kind::String) {
    for (const std::string_view character : characters_of(text(of))) all.emplace_back(std::string(character));
  } else if (kind_ == Kind::Dict) {
    for (const auto& member : mapping().members) all.push_back(member.first);
  } else {
    refuse(concat(of, " over ", name()));
  }
  return all;
}

std::size_t JinjaValue::length() const {
  if (kind_ == Kind::Undefined) return 0;
  if (kind_ == Kind::String) return character_count(*std::get<std::shared_ptr<const std::string>>(data_));
  if (kind_ == Kind::Dict) return mapping().members.size();
  if (!is_list() || kind_ == Kind::Generator) refuse(concat("the length of ", name()));
  return list().items.size();
}

void JinjaValue::set_member(const std::string& name, JinjaValue value) const {
  if (kind_ != Kind::Namespace) refuse(concat("it sets a member of ", this->name(), ", which only a namespace lets"));
  check_data(value);
  put(std::get<std::shared_ptr<Mapping>>(data_)->members, JinjaValue(name), std::move(value));
}

JinjaValue JinjaValue::item(const JinjaValue& key) const {
  if (kind_ == Kind::Undefined) refuse("a part of what is not defined");
  if (kind_ == Kind::Dict)
    if (const JinjaValue* found = mapping().find(key)) return *found;
  if (key.is(Kind::String))
    return kind_ == Kind::Dict && !has_method(*this, key.text("")) ? JinjaValue() : attribute(key.text(""));
  if (kind_ != Kind::List && kind_ != Kind::Tuple && kind_ != Kind::String) return {};
  if (key.kind() != Kind::Int && key.kind() != Kind::Bool) return {};
  const std::int64_t size = static_cast<std::int64_t>(length());
  std::int64_t at = key.integer("");
  if (at < 0) at += size;
  if (at < 0 || at >= size) return {};
  if (kind_ != Kind::String) return list().items[static_cast<std::size_t>(at)];
  return std::string(characters_of(text("a part"))[static_cast<std::size_t>(at)]);
}

JinjaValue JinjaValue::attribute(const std::string& name) const {
  if (kind_ == Kind::Undefined) refuse(concat("the member \"", name, "\" of what is not defined"));
  if (name.starts_with("__")) refuse(concat("the member \"", name, "\", which Jinja's sandbox keeps"));
  if (kind_ == Kind::Loop) {
    const auto& all = loop().items->items;
    const std::size_t at = loop().at, size = all.size();
    const auto number = [](std::size_t n) { return JinjaValue(static_cast<std::int64_t>(n)); };
    if (name == "index0") return number(at);
    if (name == "index") return number(at + 1);
    if (name == "revindex0") return number(size - at - 1);
    if (name == "revindex") return number(size - at);
    if (name == "length") return number(size);
    if (name == "first") return at == 0;
    if (name == "last") return at + 1 == size;
    if (name == "previtem") return at == 0 ? JinjaValue() : all[at - 1];
    if (name == "nextitem") return at + 1 == size ? JinjaValue() : all[at + 1];
    refuse(concat("loop.", name));
  }
  if (has_method(*this, name)) return callable(nullptr);
  if (is_number()) refuse(concat("the member \"", name, "\" of a number"));
  if (kind_ != Kind::Dict && kind_ != Kind::Namespace) return {};
  const JinjaValue* found = mapping().named(name);
  return found == nullptr ? JinjaValue() : *found;
}

JinjaValue JinjaValue::slice(const JinjaValue& from, const JinjaValue& to, const JinjaValue& step) const {
  if (kind_ == Kind::Undefined) refuse("a slice of what is not defined");
  if (kind_ != Kind::List && kind_ != Kind::Tuple && kind_ != Kind::String) return {};
  const auto pick = [&](std::size_t size, const auto& take) {
    const Cut cut = cut_of(static_cast<std::int64_t>(size), from, to, step);
    for (std::int64_t i = 0; i < cut.count; ++i) take(static_cast<std::size_t>(cut.first + i * cut.step));
  };
  if (kind_ == Kind::String) {
    const auto all = characters_of(text("a slice"));
    std::string part;
    pick(all.size(), [&](std::size_t i) { part += all[i]; });
    return part;
  }
  Items part;
  pick(list().items.size(), [&](std::size_t i) { part.push_back(list().items[i]); });
  return sequence(kind_, std::move(part));
}

std::string JinjaValue::printed(JinjaBudget& budget) const {
  if (kind_ == Kind::String) return *std::get<std::shared_ptr<const std::string>>(data_);
  std::string out;
  if (kind_ != Kind::Undefined) represent(out, budget);
  return out;
}

void JinjaValue::represent(std::string& out, JinjaBudget& budget) const {
  budget.make(8);
  bool first = true;
  const auto next = [&] {
    if (!first) out += ", ";
    first = false;
  };
  switch (kind_) {
    case Kind::None:
      out += "None";
      return;
    case Kind::Bool:
      out += truth() ? "True" : "False";
      return;
    case Kind::Int:
      out += std::to_string(std::get<std::int64_t>(data_));
      return;
    case Kind::Float:
      out += spelled(std::get<double>(data_));
      return;
    case Kind::Undefined:
      out += "Undefined";
      return;
    case Kind::String:
      budget.make(text("").size());
      quote(out, text("its printing"));
      return;
    case Kind::List:
    case Kind::Tuple:
      out += kind_ == Kind::List ? '[' : '(';
      for (const JinjaValue& item : list().items) {
        next();
        item.represent(out, budget);
      }
      if (kind_ == Kind::Tuple && list().items.size() == 1) out += ',';
      out += kind_ == Kind::List ? ']' : ')';
      return;
    case Kind::Dict:
      out += '{';
      for (const auto& [key, item] : mapping().members) {
        next();
        key.represent(out, budget);
        out += ": ";
        item.represent(out, budget);
      }
      out += '}';
      return;
    default:
      refuse(concat("it prints ", name()));
  }
}

bool JinjaValue::equals(const JinjaValue& other, JinjaBudget& budget) const {
  budget.make(8);
  if (is_number() && other.is_number())
    return kind_ == Kind::Float || other.kind_ == Kind::Float ? number("") == other.number("")
                                                              : integer("") == other.integer("");
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::Undefined:
    case Kind::None:
      return true;
    case Kind::String:
      budget.read(std::min(text("").size(), other.text("").size()));
      return text("") == other.text("");
    case Kind::List:
    case Kind::Tuple:
      return std::ranges::equal(list().items, other.list().items,
                                [&](const JinjaValue& a, const JinjaValue& b) { return a.equals(b, budget); });
    case Kind::Dict:
      return mapping().members.size() == other.mapping().members.size() &&
             std::ranges::all_of(mapping().members, [&](const auto& member) {
               budget.read(other.mapping().members.size() * 8);
               const JinjaValue* found = other.mapping().find(member.first);
               return found != nullptr && member.second.equals(*found, budget);
             });
    default:
      refuse(concat("it compares ", name()));
  }
}

bool JinjaValue::less(const JinjaValue& other, JinjaBudget& budget) const {
  budget.make(8);
  if (is_number() && other.is_number())
    return kind_ == Kind::Float || other.kind_ == Kind::Float ? number("") < other.number("")
                                                              : integer("") < other.integer("");
  if (kind_ != Kind::String || other.kind_ != Kind::String)
    refuse(concat("an order of ", name(), " and ", other.name()));
  budget.read(std::min(text("").size(), other.text("").size()));
  return text("") < other.text("");
}

bool JinjaValue::contains(const JinjaValue& part, JinjaBudget& budget) const {
  if (kind_ == Kind::String) {
    const std::string& all = text("");
    budget.read(all.size());
    return all.find(part.text("in")) != std::string::npos;
  }
  if (kind_ == Kind::Dict) {
    budget.read(mapping().members.size() * 8);
    return mapping().find(part) != nullptr;
  }
  if (kind_ == Kind::Undefined) return false;
  if (!is_list()) refuse(concat("it looks for a part in ", name()));
  Items& items = std::get<std::shared_ptr<Sequence>>(data_)->items;
  const auto found = std::ranges::find_if(items, [&](const JinjaValue& item) { return item.equals(part, budget); });
  const bool has = found != items.end();
  if (kind_ == Kind::Generator) items.erase(items.begin(), has ? found + 1 : found);
  return has;
}

std::string JsonDumps::of(const JinjaValue& value, JinjaBudget& budget) const {
  Dumper dumper(*this, budget);
  dumper.dump(value, 0);
  return std::move(dumper.out);
}

std::string_view python_strip(std::string_view text, bool left, bool right, const std::string* characters) {
  constexpr std::string_view kBlanks[] = {
      "\t",           "\n",           "\v",           "\f",           "\r",
      "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
      "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
      "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  std::vector<std::string_view> given;
  if (characters != nullptr) given = characters_of(*characters);
  const std::span<const std::string_view> blanks =
      characters != nullptr ? std::span<const std::string_view>(given) : std::span<const std::string_view>(kBlanks);
  const auto taken = [&](bool front) {
    for (const std::string_view blank : blanks)
      if (front ? text.starts_with(blank) : text.ends_with(blank)) return blank.size();
    return std::size_t{0};
  };
  if (left)
    while (const std::size_t size = taken(true)) text.remove_prefix(size);
  if (right)
    while (const std::size_t size = taken(false)) text.remove_suffix(size);
  return text;
}

bool has_method(const JinjaValue& value, std::string_view name) {
  if (value.is(Kind::String)) return is_one_of(kTextMethods, name);
  if (value.is(Kind::Dict)) return is_one_of(kDictMethods, name);
  if (value.is(Kind::Tuple)) return is_one_of(kTupleMethods, name);
  return value.is(Kind::List) && is_one_of(kListMethods, name);
}

JinjaValue call_method(const JinjaValue& value, const std::string& name, const JinjaValue::Items& arguments,
                       JinjaBudget& budget) {
  const std::size_t count = arguments.size();
  if (value.is(Kind::String)) return text_method(value, name, arguments, budget);
  if (value.is(Kind::Dict) && name == "get" && (count == 1 || count == 2)) {
    const JinjaValue* found = value.mapping().find(arguments[0]);
    return found != nullptr ? *found : count == 2 ? arguments[1] : JinjaValue::none();
  }
  if (value.is(Kind::Dict) && name == "copy" && count == 0) return value;
  if (value.is(Kind::Dict) && count == 0 && (name == "items" || name == "keys" || name == "values")) {
    JinjaValue::Items all;
    for (const auto& [key, item] : value.mapping().members) {
      budget.make(sizeof(JinjaValue));
      if (name == "items")
        all.push_back(JinjaValue::sequence(Kind::Tuple, {key, item}));
      else
        all.push_back(name == "keys" ? key : item);
    }
    return JinjaValue::sequence(Kind::View, std::move(all));
  }
  if (value.is(Kind::List) && name == "copy" && count == 0) return value;
  if ((value.is(Kind::List) || value.is(Kind::Tuple)) && count == 1 && (name == "count" || name == "index")) {
    std::int64_t found = 0, at = 0;
    for (const JinjaValue& item : value.items(name)) {
      if (item.equals(arguments[0], budget)) {
        if (name == "index") return at;
        ++found;
      }
      ++at;
    }
    if (name == "count") return found;
  }
  if ((value.is(Kind::List) || value.is(Kind::Dict)) && has_method(value, name))
    refuse(
        concat("the method \"", name, "\", by which ", value.name(), " would change: Jinja's sandbox refuses it too"));
  refuse(concat("a call of \"", name, "\" of ", value.name()));
}

JinjaValue::Items split_lines(std::string_view text) {
  JinjaValue::Items lines;
  for_each_line(text, [&](std::string_view line) { lines.emplace_back(std::string(line)); });
  return lines;
}

std::string lower_case(std::string text) {
  text = cased(std::move(text), "lower case");
  std::ranges::transform(text, text.begin(), lower);
  return text;
}

std::string upper_case(std::string text) {
  text = cased(std::move(text), "upper case");
  std::ranges::transform(text, text.begin(), upper);
  return text;
}

std::string title_case(std::string text) {
  text = lower_case(std::move(text));
  bool begins = true;
  for (char& c : text) {
    if (begins) c = upper(c);
    begins = !is_lower(lower(c));
  }
  return text;
}

std::string capitalized(std::string text) {
  text = lower_case(std::move(text));
  if (!text.empty()) text[0] = upper(text[0]);
  return text;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                     JinjaBudget& budget) {
  if (from.empty()) refuse("it replaces an empty text");
  std::string out;
  while (most-- != 0) {
    const std::size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    budget.make(at + to.size());
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::string repeated(std::string_view text, std::int64_t times, JinjaBudget& budget) {
  std::string out;
  if (times <= 0 || text.empty()) return out;
  if (times > std::int64_t{1} << 30) refuse("it repeats a text more than a billion times");
  budget.make(text.size() * static_cast<std::size_t>(times));
  for (; times > 0; --times) out += text;
  return out;
}

std::string formatted(std::string_view text, const JinjaValue& values, JinjaBudget& budget) {
  const JinjaValue::Items given = values.is(Kind::Tuple) ? values.items("%") : JinjaValue::Items{values};
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out += text[at];
      continue;
    }
    const char kind = ++at < text.size() ? text[at] : ' ';
    if (kind == '%') {
      out += '%';
      continue;
    }
    if ((kind != 's' && kind != 'd') || next == given.size()) refuse(concat("the field %", kind, " of a format"));
    const std::string part = kind == 's' ? given[next].printed(budget) : std::to_string(given[next].integer("%d"));
    ++next;
    budget.make(part.size());
    out += part;
  }
  if (next < given.size()) refuse("a format of more values than fields");
  return out;
}

}  // namespace megatron::text
