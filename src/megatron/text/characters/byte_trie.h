#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::text {

/// Strings with a value each, to be found as prefixes of a text: a hash table of (node, byte).
class ByteTrie {
 public:
  ByteTrie() : slots_(16) {}

  /// Adds a string that is not empty, or gives it another value. `value` is 0 or more.
  void add(std::string_view string, std::int32_t value) {
    std::uint32_t node = 0;
    begins_[static_cast<unsigned char>(string[0])] = true;
    for (const char c : string) {
      std::size_t slot = find(node, c);
      if (slots_[slot].key == kFree) {
        if (2 * (used_ + 1) > slots_.size()) {
          grow();
          slot = find(node, c);
        }
        slots_[slot] = {key_of(node, c), ++used_, -1};
      }
      node = slots_[slot].child;
      last_ = slot;
    }
    slots_[last_].value = value;
  }

  bool empty() const { return used_ == 0; }
  /// Whether a string begins with the byte.
  bool may_begin(char byte) const { return begins_[static_cast<unsigned char>(byte)]; }

  /// Calls `match(size, value)` for each string that `text` begins with, the shortest first.
  template <class OnMatch>
  void for_each_prefix(std::string_view text, const OnMatch& match) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i == 0 && !may_begin(text[0])) return;
      const Slot& slot = slots_[find(node, text[i])];
      if (slot.key == kFree) return;
      if (slot.value >= 0) match(i + 1, slot.value);
      node = slot.child;
    }
  }

  /// Size of the longest string that `text` begins with, and its value; 0 for none.
  std::pair<std::size_t, std::int32_t> longest(std::string_view text) const {
    std::pair<std::size_t, std::int32_t> found{0, -1};
    for_each_prefix(text, [&](std::size_t size, std::int32_t value) { found = {size, value}; });
    return found;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    std::uint32_t child = 0;
    std::int32_t value = -1;
  };

  static std::uint64_t key_of(std::uint32_t node, char c) {
    return std::uint64_t{node} << 8 | static_cast<unsigned char>(c);
  }
  std::size_t find(std::uint32_t node, char c) const {
    const std::uint64_t key = key_of(node, c);
    std::size_t slot = (key * 0x9E3779B97F4A7C15u) >> (64 - std::countr_zero(slots_.size()));
    while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.key != kFree)
        slots_[find(static_cast<std::uint32_t>(slot.key >> 8), static_cast<char>(slot.key & 0xFF))] = slot;
  }

  std::array<bool, 256> begins_{};
  std::vector<Slot> slots_;
  std::uint32_t used_ = 0;
  std::size_t last_ = 0;
};

}  // namespace megatron::text
