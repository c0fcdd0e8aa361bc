#include "megatron/text/chat/python/letter_case.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/category_ranges.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

[[noreturn]] void refuse_case(const char* of, std::uint32_t letter) {
  std::string shown;
  append_utf8(shown, letter);
  throw JinjaRefusal(concat(of, " of the letter \"", shown, "\""));
}

/// Second letter of the category of a letter: u, l, t, m, o; ' ' of what is none.
char letter_kind(std::uint32_t c) {
  const auto* found = std::ranges::lower_bound(kCategories, c, {}, &CategoryRange::last);
  const bool is_letter = found != std::end(kCategories) && found->first <= c && found->category[0] == 'L';
  return is_letter ? found->category[1] : ' ';
}

void add_lower(std::string& out, std::uint32_t c) {
  if (c == 0x3A3) refuse_case("lower case", c);  // which is another at the end of a word
  const auto* found = std::ranges::lower_bound(kLowerCase, c, {}, &CodePointMapping::from);
  if (found == std::end(kLowerCase) || found->from != c) return append_utf8(out, c);
  for (const std::uint32_t to : found->to)
    if (to != 0) append_utf8(out, to);
}

/// Capital letters by the small ones that they become.
const std::map<std::uint32_t, std::uint32_t>& capitals() {
  static const auto all = [] {
    std::map<std::uint32_t, std::uint32_t> capital;
    for (const CodePointMapping& mapping : kLowerCase)
      if (mapping.to[1] == 0 && mapping.to[0] != 0xDF && letter_kind(mapping.from) != 't')
        capital.emplace(mapping.to[0], mapping.from);
    return capital;
  }();
  return all;
}

void add_upper(std::string& out, std::uint32_t c) {
  if (c == 0xDF) {
    out += "SS";
    return;
  }
  const auto found = capitals().find(c);
  if (found == capitals().end() && (letter_kind(c) == 'l' || letter_kind(c) == 't' || c == 0x345))
    refuse_case("upper case", c);
  append_utf8(out, found == capitals().end() ? c : found->second);
}

/// What begins a word, which of few letters is another than upper case.
void add_title(std::string& out, std::uint32_t c) {
  const bool is_georgian = c >= 0x10D0 && c <= 0x10FF, is_double = c >= 0x1C4 && c <= 0x1F3 && (c < 0x1CD || c > 0x1F0);
  if (c == 0xDF || is_georgian || is_double) refuse_case("title case", c);
  add_upper(out, c);
}

template <class Take>
std::string each(std::string_view text, const Take& take) {
  std::string out;
  for_each_character(text, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    if (c.length == 0)
      out += text.substr(begin, end - begin);
    else
      take(out, c.code_point);
  });
  return out;
}

bool is_upper_case(std::uint32_t c) { return c < 0x80 ? c >= 'A' && c <= 'Z' : letter_kind(c) == 'u'; }
bool is_lower_case(std::uint32_t c) { return c < 0x80 ? c >= 'a' && c <= 'z' : letter_kind(c) == 'l'; }
bool is_cased(std::uint32_t c) { return is_upper_case(c) || is_lower_case(c); }

/// Some letters have a case that their category does not tell.
void must_have_plain_case(std::string_view text, std::string_view name) {
  for_each_character(text, [&](const DecodedChar& c, std::size_t, std::size_t) {
    const char kind = letter_kind(c.code_point);
    if (c.code_point > 0x7F && (kind == 'm' || kind == 't' || c.code_point == 0xAA || c.code_point == 0xBA ||
                                (kind == ' ' && capitals().contains(c.code_point))))
      throw JinjaRefusal(concat(name, " of a text beyond plain letters"));
  });
}

bool all_fit(std::string_view text, std::string_view name) {
  bool fit = !text.empty();
  for_each_character(text, [&](const DecodedChar& decoded, std::size_t begin, std::size_t end) {
    const std::uint32_t c = decoded.code_point;
    const CharClass kind = UnicodeClasses::instance().of(c);
    const bool is_letter = kind == CharClass::Letter, is_number = kind == CharClass::Number;
    if ((name == "isdigit" || name == "isdecimal" || name == "isnumeric") && c > 0x7F && (is_number || is_letter))
      throw JinjaRefusal(concat(name, " of a text beyond ASCII"));
    fit &= name == "isalpha"   ? is_letter
           : name == "isalnum" ? is_letter || is_number
           : name == "isspace" ? python_strip(text.substr(begin, end - begin)).empty()
           : name == "isascii" ? c < 0x80
                               : c >= '0' && c <= '9';
  });
  return fit;
}

}  // namespace

std::string lower_case(std::string_view text) { return each(text, add_lower); }
std::string upper_case(std::string_view text) { return each(text, add_upper); }

std::string swapped_case(std::string_view text) {
  must_have_plain_case(text, "swapcase");
  return each(text,
              [](std::string& out, std::uint32_t c) { is_upper_case(c) ? add_lower(out, c) : add_upper(out, c); });
}

std::string title_case(std::string_view text) {
  must_have_plain_case(text, "title");
  bool begins = true;
  return each(text, [&](std::string& out, std::uint32_t c) {
    begins ? add_title(out, c) : add_lower(out, c);
    begins = !is_cased(c);
  });
}

std::string word_case(std::string_view text) {
  bool begins = true;
  std::string one;
  return each(text, [&](std::string& out, std::uint32_t c) {
    one.clear();
    append_utf8(one, c);
    const bool parts = std::string_view("-({[<").find(one) != std::string_view::npos || python_strip(one).empty();
    begins ? add_upper(out, c) : add_lower(out, c);
    begins = parts;
  });
}

std::string capitalized(std::string_view text) {
  bool begins = true;
  return each(text, [&](std::string& out, std::uint32_t c) {
    begins ? add_title(out, c) : add_lower(out, c);
    begins = false;
  });
}

bool has_class(std::string_view text, std::string_view name) {
  if (name == "isascii" && text.empty()) return true;
  if (name == "isidentifier") {
    if (!all_fit(text, "isascii")) throw JinjaRefusal("isidentifier of a text beyond ASCII");
    const auto fits = [](char c) {
      return c == '_' || (c >= '0' && c <= '9') || is_cased(static_cast<unsigned char>(c));
    };
    return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::ranges::all_of(text, fits);
  }
  if (name != "islower" && name != "isupper" && name != "istitle") return all_fit(text, name);
  must_have_plain_case(text, name);
  bool fits = true, any = false, inside = false;
  for_each_character(text, [&](const DecodedChar& decoded, std::size_t, std::size_t) {
    const std::uint32_t c = decoded.code_point;
    any |= is_cased(c);
    if (name == "istitle")
      fits &= !is_cased(c) || is_upper_case(c) != inside;
    else
      fits &= !(name == "islower" ? is_upper_case(c) : is_lower_case(c));
    inside = is_cased(c);
  });
  return any && fits;
}

}  // namespace megatron::text
