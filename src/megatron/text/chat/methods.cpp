#include "megatron/text/chat/methods.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <span>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
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
bool is_in(const std::string_view (&names)[N], std::string_view name) {
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
    if (at == std::string::npos && name == "index") refuse("index of a substring that is not found");
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
  if (value.is(Kind::String)) return is_in(kTextMethods, name);
  if (value.is(Kind::Dict)) return is_in(kDictMethods, name);
  if (value.is(Kind::Tuple)) return is_in(kTupleMethods, name);
  return value.is(Kind::List) && is_in(kListMethods, name);
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
  if (times > std::int64_t{1} << 30) refuse("it repeats a string more than a billion times");
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
