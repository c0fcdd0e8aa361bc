#include "megatron/text/decode/detokenize.h"

#include <utility>

#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(from, at);
    out.append(text.substr(at, found - at));
    if (found == std::string_view::npos) return out;
    out.append(to);
    at = found + from.size();
  }
}

/// White space of the rules' language: Unicode's and the four information separators.
bool is_space(std::uint32_t c) {
  return (c >= 0x1C && c <= 0x1F) || UnicodeClasses::instance().of(c) == CharClass::Space;
}

}  // namespace

std::string_view trim(std::string_view text) {
  const char *begin = text.data(), *end = begin + text.size();
  while (begin < end) {
    const DecodedChar c = decode_utf8(begin, end);
    if (c.length == 0 || !is_space(c.code_point)) break;
    begin += c.length;
  }
  while (begin < end) {
    const char* last = end - 1;
    while (last > begin && (static_cast<unsigned char>(*last) & 0xC0) == 0x80) --last;
    const DecodedChar c = decode_utf8(last, end);
    if (last + c.length != end || !is_space(c.code_point)) break;
    end = last;
  }
  return {begin, static_cast<std::size_t>(end - begin)};
}

namespace {

/// Trims the text between each `open` and the next `close`.
std::string trim_inside(std::string_view text, char open, char close) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0;;) {
    const std::size_t begin = text.find(open, at);
    const std::size_t end = begin == std::string_view::npos ? begin : text.find(close, begin + 1);
    if (end == std::string_view::npos) return out.append(text.substr(at));
    out.append(text.substr(at, begin + 1 - at)).append(trim(text.substr(begin + 1, end - begin - 1)));
    out.push_back(close);
    at = end + 1;
  }
}

}  // namespace

std::string detokenize_wikitext(std::string_view text) {
  using Rule = std::pair<std::string_view, std::string_view>;
  std::string out(text);
  for (const auto& [from, to] : {Rule{"s '", "s'"},
                                 {" @-@ ", "-"},
                                 {" @,@ ", ","},
                                 {" @.@ ", "."},
                                 {" : ", ": "},
                                 {" ; ", "; "},
                                 {" . ", ". "},
                                 {" ! ", "! "},
                                 {" ? ", "? "},
                                 {" , ", ", "}})
    out = replace_all(out, from, to);
  for (const auto& [open, close] : {std::pair{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}})
    out = trim_inside(out, open, close);
  for (const auto& [from, to] : {Rule{"= = = =", "===="},
                                 {"= = =", "==="},
                                 {"= =", "=="},
                                 {" \xC2\xB0 ", "\xC2\xB0"},
                                 {" \n", "\n"},
                                 {"\n ", "\n"},
                                 {" N ", " 1 "},
                                 {" 's", "'s"}})
    out = replace_all(out, from, to);
  return out;
}

}  // namespace megatron::text
