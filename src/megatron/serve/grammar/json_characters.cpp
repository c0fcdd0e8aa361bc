#include "megatron/serve/grammar/json_characters.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/base/text/utf8.h"

namespace megatron::serve {
namespace {

constexpr std::uint32_t kSurrogate = 0xD800, kSurrogateEnd = 0xDFFF;

int byte_of(const std::string& text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

/// A range whose characters have as many bytes each. It is cut where the bytes after some place do not all run from the
/// least to the most that they may be.
void add_wide(GrammarBuilder& grammar, std::int32_t rule, std::uint32_t from, std::uint32_t to) {
  std::string first, last;
  append_utf8(first, from);
  append_utf8(last, to);
  for (std::size_t after = 1; after < first.size(); ++after) {
    const std::uint32_t mask = (1U << (6 * (first.size() - after))) - 1;  // of the bits in bytes from `after` on
    if ((from & ~mask) == (to & ~mask)) continue;
    if ((from & mask) != 0) {
      add_wide(grammar, rule, from, from | mask);
      add_wide(grammar, rule, (from | mask) + 1, to);
      return;
    }
    if ((to & mask) != mask) {
      add_wide(grammar, rule, from, (to & ~mask) - 1);
      add_wide(grammar, rule, to & ~mask, to);
      return;
    }
  }
  Grammar::Sequence bytes;
  for (std::size_t i = 0; i < first.size(); ++i)
    bytes.push_back(Grammar::bytes(bytes_from(byte_of(first, i), byte_of(last, i))));
  grammar.add(rule, bytes);
}

void add_ascii(GrammarBuilder& grammar, std::int32_t rule, const ByteSet& characters) {
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt", kHex = "0123456789abcdef";
  ByteSet plain = characters, letters;
  std::array<ByteSet, 2> hex;
  for (std::size_t c = 0; c < 0x80; ++c) {
    if (!characters.test(c)) continue;
    if (const std::size_t at = kShort.find(static_cast<char>(c)); at != std::string_view::npos)
      letters.set(static_cast<unsigned char>(kLetters[at]));
    else if (c < 0x20)
      hex[c / 16].set(static_cast<unsigned char>(kHex[c % 16]));
    else
      continue;
    plain.reset(c);
  }
  if (plain.any()) grammar.add(rule, {Grammar::bytes(plain)});
  if (letters.any()) grammar.add(rule, {Grammar::byte('\\'), Grammar::bytes(letters)});
  if (hex[0].any()) grammar.add(rule, joined({literal("\\u000"), {Grammar::bytes(hex[0])}}));
  if (hex[1].any()) grammar.add(rule, joined({literal("\\u001"), {Grammar::bytes(hex[1])}}));
}

}  // namespace

CodePoints characters_of(const CodePoints& ranges) {
  CodePoints whole;
  for (const auto& [from, to] : ranges) {
    if (from < kSurrogate) whole.emplace_back(from, std::min(to, kSurrogate - 1));
    if (to > kSurrogateEnd) whole.emplace_back(std::max(from, kSurrogateEnd + 1), std::min(to, kLastCodePoint));
  }
  return in_order(std::move(whole));
}

void add_json_characters(GrammarBuilder& grammar, std::int32_t rule, const CodePoints& characters) {
  ByteSet ascii;
  for (const auto& [from, to] : characters) {
    for (std::uint32_t c = from; c <= to && c < 0x80; ++c) ascii.set(c);
    for (const auto& [first, last] : CodePoints{{0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLastCodePoint}})
      if (from <= last && to >= first) add_wide(grammar, rule, std::max(from, first), std::min(to, last));
  }
  if (ascii.any()) add_ascii(grammar, rule, ascii);
}

}  // namespace megatron::serve
