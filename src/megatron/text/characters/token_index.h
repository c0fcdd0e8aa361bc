#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::text {

/// Ids of byte strings, which must outlive it: open addressing in one flat table, at most half full.
class TokenIndex {
 public:
  /// Makes room for `entries`, before the first is added.
  void reserve(std::size_t entries) { slots_.resize(std::bit_ceil(std::max<std::size_t>(entries, 8) * 2)); }

  /// The id of these bytes, and whether they are new and it is `id`.
  std::pair<std::int32_t*, bool> emplace(std::string_view bytes, std::int32_t id) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    const std::uint32_t hash = hash_of(bytes);
    Slot& slot = slots_[slot_of(bytes, hash)];
    const bool is_new = slot.id < 0;
    if (is_new) {
      slot = {bytes.data(), static_cast<std::uint32_t>(bytes.size()), hash, id};
      ++size_;
    }
    return {&slot.id, is_new};
  }

  /// -1 where they are none's.
  std::int32_t find(std::string_view bytes) const {
    return slots_.empty() ? -1 : slots_[slot_of(bytes, hash_of(bytes))].id;
  }

 private:
  struct Slot {
    const char* bytes = nullptr;
    std::uint32_t size = 0, hash = 0;
    std::int32_t id = -1;
  };

  static std::uint32_t hash_of(std::string_view bytes) {
    return static_cast<std::uint32_t>(std::hash<std::string_view>()(bytes));
  }
  /// Of these bytes, or the empty one where they would stand.
  std::size_t slot_of(std::string_view bytes, std::uint32_t hash) const {
    for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.id < 0 || (slot.hash == hash && std::string_view(slot.bytes, slot.size) == bytes)) return at;
    }
  }
  void grow() {
    std::vector<Slot> before = std::exchange(slots_, {});
    slots_.resize(std::max<std::size_t>(16, 2 * before.size()));
    for (const Slot& slot : before)
      if (slot.id >= 0) slots_[slot_of({slot.bytes, slot.size}, slot.hash)] = slot;
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace megatron::text
