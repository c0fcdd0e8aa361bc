#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/chat/filters.h"
#include "megatron/text/chat/operations.h"
#include "megatron/text/chat/python/letter_case.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

[[noreturn]] void refuse_text(const std::string& what) { throw JinjaRefusal(what); }

Value indented(const std::string& text, JinjaArguments& arguments, JinjaBudget& budget) {
  const auto width = arguments.get(0, "width");
  const std::string by = width && width->is(Kind::String) ? width->text("indent")
                                                          : repeated(" ", width ? width->integer("indent") : 4, budget);
  const bool first = arguments.flag(1, "first", false), blank = arguments.flag(2, "blank", false);
  const Items lines = split_lines(text + "\n");
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i].text("");
    budget.make(by.size() + line.size() + 1);
    if (i > 0) out += '\n';
    if (i == 0 ? first : blank || !line.empty()) out += by;
    out += line;
  }
  return out;
}

/// The characters [from, to) of a text.
std::string part_of(const std::vector<std::string_view>& all, std::int64_t to) {
  std::string out;
  if (to < 0) to = std::max<std::int64_t>(0, to + std::ssize(all));
  for (std::int64_t i = 0; i < std::min(to, std::ssize(all)); ++i) out += all[static_cast<std::size_t>(i)];
  return out;
}

Value truncated(const std::string& text, JinjaArguments& arguments, JinjaBudget& budget) {
  const std::int64_t length = arguments.integer(0, "length", 255);
  const bool cuts_words = arguments.flag(1, "killwords", false);
  const auto given = arguments.get(2, "end");
  const std::string end = given ? given->text("truncate") : "...";
  const auto leeway = arguments.get_some(3, "leeway");
  const std::int64_t more = leeway ? leeway->integer("truncate") : 5;
  const auto end_size = static_cast<std::int64_t>(character_count(end));
  if (length < end_size || more < 0) refuse_text("truncate to less than what it writes at the end");
  budget.make(text.size() * sizeof(std::string_view));
  const std::vector<std::string_view> all = characters_of(text);
  if (std::ssize(all) - more <= length) return text;
  std::string part = part_of(all, length - end_size);
  if (const std::size_t space = part.rfind(' '); !cuts_words && space != std::string::npos) part.resize(space);
  return part + end;
}

std::int64_t word_count(std::string_view text) {
  std::int64_t count = 0;
  bool inside = false;
  for_each_character(text, [&](const DecodedChar& c, std::size_t, std::size_t) {
    const CharClass kind = UnicodeClasses::instance().of(c.code_point);
    const bool of_word = kind == CharClass::Letter || kind == CharClass::Number || c.code_point == '_';
    count += of_word && !inside ? 1 : 0;
    inside = of_word;
  });
  return count;
}

/// Words of a line without hyphens in rows of at most `width` characters, as Python's textwrap.wrap() lays them.
void wrap_line(std::string_view line, std::size_t width, bool breaks, Items& rows) {
  struct Chunk {
    std::vector<std::string_view> characters;
    bool is_blank;
  };
  std::vector<Chunk> chunks;
  for (const std::string_view c : characters_of(line)) {
    const bool blank = c.size() == 1 && std::string_view("\t\n\v\f\r ").find(c[0]) != std::string_view::npos;
    if (!blank && python_strip(c).empty()) refuse_text("wordwrap of this white space");
    if (chunks.empty() || chunks.back().is_blank != blank) chunks.push_back({{}, blank});
    chunks.back().characters.push_back(c);
  }
  for (std::size_t at = 0; at < chunks.size();) {
    if (chunks[at].is_blank && !rows.empty() && ++at == chunks.size()) break;
    std::vector<std::size_t> row;
    std::string text;
    std::size_t size = 0;
    for (; at < chunks.size() && size + chunks[at].characters.size() <= width; ++at) {
      size += chunks[at].characters.size();
      row.push_back(at);
    }
    for (const std::size_t chunk : row)
      for (const std::string_view c : chunks[chunk].characters) text += c;
    bool ends_blank = !row.empty() && chunks[row.back()].is_blank;
    if (at < chunks.size() && chunks[at].characters.size() > width) {
      auto& rest = chunks[at].characters;
      const std::size_t room = breaks ? width - size : row.empty() ? rest.size() : 0;
      for (std::size_t i = 0; i < room; ++i) text += rest[i];
      if (room > 0 || breaks) ends_blank = room > 0 && chunks[at].is_blank;
      rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(room));
      if (rest.empty()) ++at;
    }
    if (ends_blank) {
      std::size_t end = text.find_last_not_of("\t\n\v\f\r ");
      text.resize(end == std::string::npos ? 0 : end + 1);
    }
    if (!text.empty()) rows.emplace_back(text);
  }
}

Value wrapped(const std::string& text, JinjaArguments& arguments, JinjaBudget& budget) {
  const std::int64_t width = arguments.integer(0, "width", 79);
  const bool breaks = arguments.flag(1, "break_long_words", true);
  const auto given = arguments.get_some(2, "wrapstring");
  const std::string between = given ? given->text("wordwrap") : "\n";
  const bool at_hyphens = arguments.flag(3, "break_on_hyphens", true);
  if (width <= 0) refuse_text("wordwrap to no width");
  if (at_hyphens && text.find('-') != std::string::npos) refuse_text("wordwrap of a text with hyphens");
  budget.make(text.size() * 64);
  std::string out;
  bool first = true;
  for (const Value& line : split_lines(text)) {
    Items rows;
    wrap_line(line.text(""), static_cast<std::size_t>(width), breaks, rows);
    if (rows.empty()) rows.emplace_back(std::string());
    for (const Value& row : rows) {
      budget.make(between.size() + row.text("").size());
      if (!first) out += between;
      first = false;
      out += row.text("");
    }
  }
  return out;
}

/// Bytes as a URL has them; of a query a space is a plus and a slash is no part of a path.
std::string url_quoted(std::string_view text, bool in_query) {
  constexpr std::string_view kDigits = "0123456789ABCDEF", kPlain = "_.-~";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          kPlain.find(c) != std::string_view::npos || (c == '/' && !in_query);
    if (is_plain)
      out += c;
    else if (c == ' ' && in_query)
      out += '+';
    else
      out += std::string{'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

Value url_encoded(const Value& value, JinjaBudget& budget) {
  const bool is_dict = value.is(Kind::Dict);
  if (!is_dict && !value.is_sequence() && !value.is(Kind::View)) {
    const std::string text = value.printed(budget);
    budget.make(3 * text.size());
    return url_quoted(text, false);
  }
  JinjaArguments none("items", {}, {});
  std::string out;
  for (const Value& pair :
       jinja_items(is_dict ? call_method(value, "items", none, budget) : value, "urlencode", budget)) {
    const Items both = jinja_items(pair, "urlencode", budget);
    if (both.size() != 2) refuse_text("urlencode of other than pairs");
    const std::string key = both[0].printed(budget), member = both[1].printed(budget);
    budget.make(3 * (key.size() + member.size()) + 2);
    out += concat(out.empty() ? "" : "&", url_quoted(key, true), "=", url_quoted(member, true));
  }
  return out;
}

/// Markup.unescape(), of the entities that escape() writes.
std::string unescaped(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, char>, 7> kEntities = {{{"&amp;", '&'},
                                                                           {"&lt;", '<'},
                                                                           {"&gt;", '>'},
                                                                           {"&quot;", '"'},
                                                                           {"&#34;", '"'},
                                                                           {"&#39;", '\''},
                                                                           {"&#x27;", '\''}}};
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '&') {
      out += text[at];
      continue;
    }
    const std::string_view rest = std::string_view(text).substr(at);
    const auto* found = std::ranges::find_if(kEntities, [&](const auto& one) { return rest.starts_with(one.first); });
    if (found == kEntities.end()) {
      if (rest.size() > 1 && std::string_view("\t\n\f <&;").find(rest[1]) == std::string_view::npos)
        refuse_text("striptags of this entity");
      out += '&';
      continue;
    }
    out += found->second;
    at += found->first.size() - 1;
  }
  return out;
}

Value without_tags(std::string text, JinjaBudget& budget) {
  const auto leave_out = [&](std::string_view begin, std::string_view end) {
    std::string out;
    std::size_t at = 0;
    for (;;) {
      const std::size_t from = text.find(begin, at);
      const std::size_t to = from == std::string::npos ? from : text.find(end, from);
      if (to == std::string::npos) break;
      out.append(text, at, from - at);
      at = to + end.size();
    }
    text = out.append(text, at);
  };
  leave_out("<!--", "-->");
  leave_out("<", ">");
  JinjaArguments none("split", {}, {});
  std::string out;
  for (const Value& word : call_method(Value(text), "split", none, budget).items("striptags"))
    out += concat(out.empty() ? "" : " ", word.text(""));
  return unescaped(out);
}

Value attributes(const Value& value, JinjaArguments& arguments, JinjaBudget& budget) {
  const bool space = arguments.flag(0, "autospace", true);
  if (!value.is(Kind::Dict)) refuse_text(concat("xmlattr of ", value.name()));
  std::string out;
  for (const auto& [key, member] : value.mapping().members) {
    if (member.is(Kind::None) || member.is(Kind::Undefined)) continue;
    const std::string& name = key.text("xmlattr");
    if (name.find_first_of("/>=") != std::string::npos || name.find_first_of(" \t\n\v\f\r") != std::string::npos)
      refuse_text("xmlattr of a key that is no name");
    const std::string text = member.printed(budget);
    budget.make(6 * (name.size() + text.size()));
    if (space || !out.empty()) out += ' ';
    out += concat(escaped(name), "=\"", member.is_safe() ? text : escaped(text), "\"");
  }
  return out;
}

Value cased(const std::string& text, const std::string& name) {
  return name == "lower"   ? lower_case(text)
         : name == "upper" ? upper_case(text)
         : name == "title" ? word_case(text)
                           : capitalized(text);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    constexpr std::string_view kSigns = "&<>\"'";
    constexpr std::array<const char*, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    if (const std::size_t at = kSigns.find(c); at != std::string_view::npos)
      out += kEscapes[at];
    else
      out += c;
  }
  return out;
}

std::optional<JinjaValue> text_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                                        JinjaBudget& budget) {
  if (name == "string" && value.is(Kind::String)) return value;
  if (name == "string") return Value(value.printed(budget));
  if (name == "xmlattr") return attributes(value, arguments, budget);
  if (name == "urlencode") return url_encoded(value, budget);
  if (!is_one_of(name, {"safe", "escape", "e", "forceescape", "striptags", "trim", "lower", "upper", "title",
                        "capitalize", "replace", "indent", "center", "truncate", "wordcount", "wordwrap"}))
    return std::nullopt;
  const std::string text = value.printed(budget);
  budget.make(text.size());
  if (name == "safe") return Value::safe(text);
  if (name == "escape" || name == "e" || name == "forceescape") {
    budget.make(5 * text.size());
    return Value::safe(value.is_safe() && name != "forceescape" ? text : escaped(text));
  }
  if (name == "striptags") return without_tags(text, budget);
  if (name == "wordcount") return word_count(text);
  if (name == "replace") {
    const std::string from = arguments.must(0, "old").printed(budget), to = arguments.must(1, "new").printed(budget);
    const auto most = arguments.get_some(2, "count");
    return replaced(text, from, to, most ? most->integer(name) : -1, budget);
  }
  if (name == "trim") {
    const auto characters = arguments.get_some(0, "chars");
    std::string rest(python_strip(text, true, true, characters ? &characters->text(name) : nullptr));
    return value.is_safe() ? Value::safe(std::move(rest)) : Value(std::move(rest));
  }
  if (value.is_safe()) refuse_text(concat("the filter \"", name, "\" of a text that \"safe\" went over"));
  if (is_one_of(name, {"lower", "upper", "title", "capitalize"})) return cased(text, name);
  if (name == "center") return centered(text, arguments.integer(0, "width", 80), budget);
  if (!value.is(Kind::String)) refuse_text(concat("the filter \"", name, "\" of ", value.name()));
  return name == "indent"     ? indented(text, arguments, budget)
         : name == "truncate" ? truncated(text, arguments, budget)
                              : wrapped(text, arguments, budget);
}

}  // namespace megatron::text
