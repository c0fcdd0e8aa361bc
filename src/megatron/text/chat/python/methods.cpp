#include "megatron/text/chat/python/methods.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/chat/python/formats.h"
#include "megatron/text/chat/python/letter_case.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

/// Calls `take(line, its bytes with its end)` for each.
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
    take(text.substr(begin, at - begin), at - begin + end->size());
    begin = at += end->size();
  }
  if (begin < text.size()) take(text.substr(begin), text.size() - begin);
}

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

bool starts_or_ends(std::string_view text, const Value& part, bool starts) {
  if (part.is(Kind::Tuple))
    return std::ranges::any_of(part.items(""), [&](const Value& one) { return starts_or_ends(text, one, starts); });
  const std::string& wanted = part.text(starts ? "startswith" : "endswith");
  return starts ? text.starts_with(wanted) : text.ends_with(wanted);
}

std::string joined(std::string_view between, const Value& parts, JinjaBudget& budget) {
  std::string out;
  bool first = true;
  if (parts.is(Kind::String)) budget.make(parts.length() * sizeof(Value));
  for (const Value& part : parts.items("join")) {
    const std::string& text = part.text("join");
    budget.make(text.size() + between.size());
    if (!first) out += between;
    first = false;
    out += text;
  }
  return out;
}

constexpr std::string_view kTextMethods[] = {
    "strip", "lstrip", "rstrip", "startswith", "endswith", "split", "rsplit", "splitlines", "upper", "lower", "title",
    "capitalize", "swapcase", "replace", "join", "find", "rfind", "index", "rindex", "count", "format", "format_map",
    "isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isspace", "islower", "isupper", "istitle", "isascii",
    "isidentifier", "zfill", "center", "ljust", "rjust", "expandtabs", "removeprefix", "removesuffix", "partition",
    "rpartition",
    // which Python has and templates do not call
    "casefold", "encode", "isprintable", "maketrans", "translate"};
constexpr std::string_view kNumberMethods[] = {
    "real", "imag",    "numerator", "denominator", "conjugate", "is_integer", "as_integer_ratio",
    "hex",  "fromhex", "to_bytes",  "from_bytes",  "bit_count", "bit_length"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kListMethods[] = {"index", "count", "append",  "extend", "insert", "remove",
                                             "pop",   "clear", "reverse", "sort",   "copy"};
constexpr std::string_view kLoopMethods[] = {"cycle", "changed"};
constexpr std::string_view kCyclerMethods[] = {"next", "reset"};
constexpr std::string_view kDictMethods[] = {"get", "items",   "keys",   "values",     "copy",    "clear",
                                             "pop", "popitem", "update", "setdefault", "fromkeys"};

template <std::size_t N>
bool is_in(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

/// find, rfind, index, rindex and count: of a part in the characters [from, to) of a text.
Value found_in(std::string_view text, const std::string& name, const Value::Items& arguments, JinjaBudget& budget) {
  const std::string& part = arguments[0].text(name);
  std::size_t before = 0;  // characters
  bool is_outside = false;
  if (arguments.size() > 1) {
    budget.make(text.size() * sizeof(std::string_view));
    const std::vector<std::string_view> all = characters_of(text);
    const auto size = static_cast<std::int64_t>(all.size());
    const auto bound = [&](std::size_t i, std::int64_t otherwise) {
      if (i >= arguments.size() || arguments[i].is(Kind::None)) return otherwise;
      const std::int64_t at = arguments[i].integer(name);
      return at < 0 ? std::max<std::int64_t>(0, at + size) : at;
    };
    const std::int64_t from = bound(1, 0), to = std::min(bound(2, size), size);
    is_outside = from > to;
    const auto byte = [&](std::int64_t i) {
      return i >= size ? text.size() : static_cast<std::size_t>(all[static_cast<std::size_t>(i)].data() - text.data());
    };
    before = static_cast<std::size_t>(std::min(from, size));
    text = is_outside ? std::string_view() : text.substr(byte(from), byte(to) - byte(from));
  }
  if (name == "count") {
    if (part.empty()) return is_outside ? std::int64_t{0} : static_cast<std::int64_t>(character_count(text)) + 1;
    std::int64_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
    return found;
  }
  const std::size_t at = is_outside ? std::string::npos : name[0] == 'r' ? text.rfind(part) : text.find(part);
  if (at == std::string::npos && name.ends_with("index")) refuse("index of a substring that is not found");
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(before + character_count(text.substr(0, at)));
}

/// str.ljust, rjust and center: with a character on one side or on both.
std::string justified(std::string_view text, const std::string& name, std::int64_t width, std::string_view fill,
                      JinjaBudget& budget) {
  const auto size = static_cast<std::int64_t>(character_count(text));
  const std::int64_t blanks = std::max<std::int64_t>(0, width - size);
  const std::int64_t left = name == "ljust" ? 0 : name == "rjust" ? blanks : blanks / 2 + (blanks & width & 1);
  return repeated(fill, left, budget).append(text) + repeated(fill, blanks - left, budget);
}

std::string expanded_tabs(std::string_view text, std::int64_t size, JinjaBudget& budget) {
  std::string out;
  std::int64_t column = 0;
  for (const std::string_view c : characters_of(text)) {
    const std::int64_t blanks = size > 0 ? size - column % size : 0;
    out += c == "\t" ? repeated(" ", blanks, budget) : c;
    column = c == "\n" || c == "\r" ? 0 : column + (c == "\t" ? blanks : 1);
  }
  return out;
}

Value text_method(const Value& value, const std::string& name, JinjaArguments& given, JinjaBudget& budget) {
  const std::string& text = value.text(name);
  budget.read(text.size());
  budget.make(text.size());
  if (name == "format") return format_fields(text, given, budget);
  if (name == "split" || name == "rsplit") {
    const auto separator = given.get_some(0, "sep");
    const std::int64_t most = given.integer(1, "maxsplit", -1);
    given.must_be_used();
    return Value::sequence(Kind::List,
                           split(text, separator ? &separator->text(name) : nullptr, most, name == "rsplit"));
  }
  if (name == "splitlines" || name == "expandtabs") {
    const bool with_ends = name == "splitlines" && given.flag(0, "keepends", false);
    const std::int64_t size = name == "expandtabs" ? given.integer(0, "tabsize", 8) : 0;
    given.must_be_used();
    if (name == "expandtabs") return expanded_tabs(text, size, budget);
    return Value::sequence(Kind::List, split_lines(text, with_ends));
  }
  const Value::Items arguments = given.rest();
  const std::size_t count = arguments.size();
  const auto word = [&](std::size_t i) -> const std::string& { return arguments[i].text(name); };
  const bool has_none = count == 0 || (count == 1 && arguments[0].is(Kind::None));
  if (name.ends_with("strip") && count <= 1)
    return std::string(
        python_strip(text, name != "rstrip", name != "lstrip", has_none ? nullptr : &arguments[0].text(name)));
  if ((name == "startswith" || name == "endswith") && count == 1)
    return starts_or_ends(text, arguments[0], name == "startswith");
  if ((name == "partition" || name == "rpartition") && count == 1) {
    Value::Items parts = split(text, &word(0), 1, name == "rpartition");
    if (parts.size() == 2)
      parts.insert(parts.begin() + 1, arguments[0]);
    else
      parts.insert(name == "partition" ? parts.end() : parts.begin(), 2, std::string());
    return Value::sequence(Kind::Tuple, std::move(parts));
  }
  if (count == 0) {
    if (name == "upper") return upper_case(text);
    if (name == "lower") return lower_case(text);
    if (name == "title") return title_case(text);
    if (name == "capitalize") return capitalized(text);
    if (name == "swapcase") return swapped_case(text);
    if (name.starts_with("is") && name != "isprintable") return has_class(text, name);
  }
  if (name == "replace" && (count == 2 || count == 3))
    return replaced(text, word(0), word(1), count == 3 ? arguments[2].integer(name) : -1, budget);
  if (name == "join" && count == 1) return joined(text, arguments[0], budget);
  if (is_one_of(name, {"find", "rfind", "index", "rindex", "count"}) && count >= 1 && count <= 3)
    return found_in(text, name, arguments, budget);
  if (name == "format_map" && count == 1 && arguments[0].is(Kind::Dict)) {
    std::vector<std::string> names;
    Value::Items values;
    for (const auto& [key, member] : arguments[0].mapping().members) {
      names.push_back(key.text(name));
      values.push_back(member);
    }
    return format_fields(text, JinjaArguments(name, std::move(names), std::move(values)), budget);
  }
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
  if (is_one_of(name, {"center", "ljust", "rjust"}) && (count == 1 || count == 2)) {
    const std::string fill = count == 2 ? word(1) : " ";
    if (character_count(fill) != 1) refuse(concat("the method \"", name, "\" with other than a character"));
    return justified(text, name, arguments[0].integer(name), fill, budget);
  }
  refuse(concat("the method \"", name, "\" of a text with ", count, " arguments"));
}

Value loop_method(const Value& value, const std::string& name, const Value::Items& arguments, JinjaBudget& budget) {
  Value::State& state = value.state();
  if (name == "cycle") {
    if (arguments.empty()) refuse("loop.cycle of nothing");
    return arguments[state.at % arguments.size()];
  }
  if (name != "changed") refuse(concat("loop.", name));
  const Value now = Value::sequence(Kind::Tuple, arguments);
  const bool is_same = state.was_asked && Value::sequence(Kind::Tuple, state.changed).equals(now, budget);
  state.was_asked = true;
  state.changed = arguments;
  return !is_same;
}

Value cycler_method(const Value& value, const std::string& name) {
  Value::State& state = value.state();
  const std::size_t at = state.at;
  if (name == "reset") {
    state.at = 0;
    return Value::none();
  }
  if (name != "next") refuse(concat("the member \"", name, "\" of a cycler"));
  state.at = (at + 1) % state.items->items.size();
  return state.items->items[at];
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
  if (value.is_number()) return is_in(kNumberMethods, name);
  if (value.is(Kind::Tuple) || value.is(Kind::Range)) return is_in(kTupleMethods, name);
  if (value.is(Kind::Loop)) return is_in(kLoopMethods, name);
  if (value.is(Kind::Cycler)) return is_in(kCyclerMethods, name);
  return value.is(Kind::List) && is_in(kListMethods, name);
}

JinjaValue call_method(const JinjaValue& value, const std::string& name, JinjaArguments& given, JinjaBudget& budget) {
  if (value.is(Kind::String)) return text_method(value, name, given, budget);
  const JinjaValue::Items arguments = given.rest();
  const std::size_t count = arguments.size();
  if (value.is(Kind::Loop)) return loop_method(value, name, arguments, budget);
  if (value.is(Kind::Cycler) && count == 0) return cycler_method(value, name);
  if (value.is(Kind::Dict) && name == "get" && (count == 1 || count == 2)) {
    if (!value.contains(arguments[0], budget)) return count == 2 ? arguments[1] : JinjaValue::none();
    return *value.mapping().find(arguments[0]);
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
  if (value.is_sequence() && count == 1 && (name == "count" || name == "index")) {
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

JinjaValue::Items split_lines(std::string_view text, bool with_ends) {
  JinjaValue::Items lines;
  for_each_line(text, [&](std::string_view line, std::size_t end) {
    lines.emplace_back(std::string(line.data(), with_ends ? end : line.size()));
  });
  return lines;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                     JinjaBudget& budget) {
  std::string out;
  if (from.empty()) {  // before each character, and at the end
    for (const std::string_view c : characters_of(text)) {
      budget.make(c.size() + to.size());
      if (most-- != 0)
        out += to;
      else
        most = 0;
      out += c;
    }
    return most != 0 ? out.append(to) : out;
  }
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

std::string centered(std::string_view text, std::int64_t width, JinjaBudget& budget) {
  return justified(text, "center", width, " ", budget);
}

}  // namespace megatron::text
