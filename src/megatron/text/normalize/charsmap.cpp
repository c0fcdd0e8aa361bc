#include "megatron/text/normalize/charsmap.h"

#include <cstring>

#include "megatron/base/error.h"

namespace megatron::text {
namespace {

// A unit of the trie: bit 8 says that a key ends behind it, the low byte and the top bit are its label, the rest is
// where its children are, relative to it.
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FFu; }

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& where) {
  if (blob.empty()) return;
  const auto refuse = [&](const std::string& got) {
    throw ConfigError(rule_got_fix(
        concat(where, ": a compiled map must be the size of a trie in 4 bytes, the trie, and replacements ended by 0"),
        got));
  };
  std::uint32_t size = 0;
  if (blob.size() < 4) refuse(concat(blob.size(), " bytes"));
  std::memcpy(&size, blob.data(), 4);
  if (size == 0 || size % 4 != 0 || size > blob.size() - 4)
    refuse(concat("a trie of ", size, " of ", blob.size(), " bytes"));
  trie_.resize(size / 4);
  std::memcpy(trie_.data(), blob.data() + 4, size);
  replacements_ = blob.substr(4 + size);
  if (replacements_.empty() || replacements_.back() != '\0') refuse("no 0 at the end");
}

Charsmap::Match Charsmap::find(std::string_view text, bool first) const {
  Match match;
  if (trie_.empty()) return match;
  std::size_t node = offset_of(trie_[0]);
  text = text.substr(0, kMaxKey);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= trie_.size() || label_of(trie_[node]) != byte) break;
    const std::uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if ((unit & 0x100) == 0) continue;
    if (node >= trie_.size()) break;
    const std::size_t value = trie_[node] & 0x7FFFFFFFu;
    if (value >= replacements_.size()) continue;
    match = {i + 1, std::string_view(replacements_.data() + value)};
    if (first) break;
  }
  return match;
}

}  // namespace megatron::text
