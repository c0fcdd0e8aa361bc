#include "megatron/text/normalize/sentencepiece_text.h"

#include <algorithm>
#include <optional>

#include "megatron/text/characters/grapheme_tables.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

DecodedChar character_at(std::string_view text) { return decode_utf8(text.data(), text.data() + text.size()); }
std::size_t size_of(const DecodedChar& c) { return static_cast<std::size_t>(std::max(c.length, 1)); }

bool is_control(std::uint32_t c) {
  static const CodePointSet set(kGraphemeControl);
  return c < 0x80 ? c < 0x20 || c == 0x7F : set.has(c);
}
bool is_prepend(std::uint32_t c) {
  static const CodePointSet set(kGraphemePrepend);
  return set.has(c);
}
bool is_extend(std::uint32_t c) {
  static const CodePointSet set(kGraphemeExtend);
  return set.has(c);
}

/// A grapheme cluster at the front of a text, and the character behind it, where that has been looked at.
struct Cluster {
  std::size_t size;  ///< in bytes
  std::optional<DecodedChar> behind;
};

/// The grapheme cluster that `text`, which `first` leads, begins with (UAX #29), or 6 bytes of it or more where it is
/// longer.
Cluster cluster_of(std::string_view text, const DecodedChar& first) {
  std::size_t size = size_of(first);
  if (text.starts_with("\r\n")) return {2, {}};
  if (is_control(first.code_point)) return {size, {}};
  bool joins = is_prepend(first.code_point);
  while (size < text.size() && size < 6) {
    const DecodedChar c = character_at(text.substr(size));
    if (is_control(c.code_point) || (!joins && !is_extend(c.code_point))) return {size, c};
    joins = joins && is_prepend(c.code_point);
    size += size_of(c);
  }
  return {size, {}};
}

}  // namespace

SentencePieceText::SentencePieceText(const normalizer::SentencePiece& options, const std::string& where)
    : options_(options), map_(options.charsmap, where) {
  for (const std::string& symbol : options_.user_symbols) user_symbols_.add(symbol, 0);
}

SentencePieceText::MappedText SentencePieceText::next(std::string_view text) const {
  if (const std::size_t size = user_symbols_.longest(text).first; size > 0) return {size, text.substr(0, size)};
  if (const Charsmap::Match match = map_.longest(text); match.size > 0) return {match.size, match.replacement};
  const std::size_t size = size_of(character_at(text));
  return {size, text.substr(0, size)};
}

/// The end of the characters from `at` on that stay what they are.
std::size_t SentencePieceText::plain_end(std::string_view text, std::size_t at) const {
  if (!map_.empty()) return at;
  for (; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == ' ' || ((byte & 0xC0) != 0x80 && user_symbols_.may_begin(text[at]))) break;
  }
  return at;
}

void SentencePieceText::apply(AlignedText& text) const {
  const std::string_view old = text.bytes();
  AlignedText result = AlignedText::like(text);
  result.reserve(old.size() + old.size() / 4);
  const std::string_view space = options_.escape_spaces ? kSpaceMark : " ";
  std::size_t at = 0;
  if (options_.remove_extra_spaces)
    for (MappedText part; at < old.size() && (part = next(old.substr(at))).text == " ";) at += part.size;
  const bool dummy = options_.add_dummy_prefix && at < old.size();
  if (dummy && !options_.space_is_suffix) result.append_over(text, at, at, space);
  bool after_space = options_.remove_extra_spaces;
  while (at < old.size()) {
    if (const std::size_t end = plain_end(old, at); end > at) {
      result.append_kept(text, at, end);
      at = end;
      after_space = false;
      continue;
    }
    const MappedText part = next(old.substr(at));
    std::string_view put = part.text;
    while (after_space && put.starts_with(' ')) put.remove_prefix(1);
    if (!put.empty()) after_space = options_.remove_extra_spaces && put.ends_with(' ');
    while (!put.empty()) {
      const std::size_t blank = std::min(put.find(' '), put.size());
      if (blank > 0) result.append_over(text, at, at + part.size, put.substr(0, blank));
      if (blank < put.size()) result.append_over(text, at, at + part.size, space);
      put.remove_prefix(std::min(blank + 1, put.size()));
    }
    at += part.size;
  }
  if (options_.remove_extra_spaces)
    while (result.bytes().ends_with(space)) result.shrink(result.bytes().size() - space.size());
  if (dummy && options_.space_is_suffix) result.append_over(text, at, at, space);
  text = std::move(result);
}

void replace_clusters(AlignedText& text, const Charsmap& map) {
  if (map.empty()) return;
  const std::string_view old = text.bytes();
  std::vector<Change> changes;
  changes.reserve(old.size());
  // As many changes as `with` has characters; the last of them make up for the difference to `size` bytes of text.
  const auto replace = [&](std::string_view what, std::string_view with) {
    const std::size_t before = changes.size();
    for (std::size_t i = 0; i < with.size();) {
      const DecodedChar c = character_at(with.substr(i));
      changes.push_back({c.length == 0 ? 0xFFFD : c.code_point, 0});
      i += size_of(c);
    }
    text.check(changes.size());
    const auto characters = static_cast<std::size_t>(
        std::count_if(what.begin(), what.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    const std::size_t put = changes.size() - before;
    if (put > characters)
      std::for_each(changes.end() - static_cast<std::ptrdiff_t>(put - characters), changes.end(),
                    [](Change& change) { change.change = 1; });
    else if (put < characters && !changes.empty())
      changes.back().change -= static_cast<int>(characters - put);
  };
  std::optional<DecodedChar> ahead;  // the character at `at`, if it has been looked at
  for (std::size_t at = 0; at < old.size();) {
    const DecodedChar first = ahead ? *ahead : character_at(old.substr(at));
    const Cluster cluster = cluster_of(old.substr(at), first);
    const std::size_t size = std::min(cluster.size, old.size() - at), own = size_of(first);
    ahead = cluster.behind;
    if (size < 6)
      if (const auto match = map.shortest(old.substr(at, size)); match.size > 0) {
        replace(old.substr(at, size), match.replacement);
        at += size;
        continue;
      }
    if (size > own) ahead.reset();
    const std::string_view part = old.substr(at, own);
    // A cluster of one character has been looked for.
    if (const auto match = size == own ? Charsmap::Match() : map.shortest(part); match.size > 0)
      replace(part, match.replacement);
    else
      changes.push_back({first.code_point, 0});
    at += own;
    // The rest of a long cluster, character by character: none of it begins a cluster of its own.
    while (at < old.size() && size >= 6) {
      const DecodedChar c = character_at(old.substr(at));
      if (is_control(c.code_point) || !is_extend(c.code_point)) break;
      const std::string_view mark = old.substr(at, size_of(c));
      if (const auto match = map.shortest(mark); match.size > 0)
        replace(mark, match.replacement);
      else
        changes.push_back({c.code_point, 0});
      at += mark.size();
    }
  }
  text.transform(changes);
}

}  // namespace megatron::text
