#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace megatron::text {

/// A piece of at most 15 bytes as two words: its bytes, zeros, and the length in the last byte; so two pieces are equal
/// when the words are, and no piece has hi == 0.
struct PieceKey {
  static constexpr std::size_t kMaxBytes = 15;

  std::uint64_t lo = 0, hi = 0;

  bool operator==(const PieceKey&) const = default;

  /// Key of the `size` (1 … 15) bytes at `p`; `readable` bytes may be read there.
  static PieceKey of(const char* p, std::size_t size, std::size_t readable) {
    PieceKey key;
    if (readable >= 16) {
      std::memcpy(&key, p, 16);
      key.lo &= kKeep[size][0];
      key.hi &= kKeep[size][1];
    } else {
      std::memcpy(&key, p, size);
    }
    key.hi |= static_cast<std::uint64_t>(size) << 56;
    return key;
  }

  /// The same bytes apart from those of this key: what stands for another kind of piece.
  PieceKey marked() const { return {lo, hi | std::uint64_t{1} << 63}; }

  /// A well mixed word; use its top bits.
  std::uint64_t hash() const {
    std::uint64_t h = lo ^ (hi * 0x9E3779B97F4A7C15u);
    h ^= h >> 32;
    return h * 0xD6E8FEB86659FD93u;
  }

 private:
  static constexpr std::array<std::array<std::uint64_t, 2>, 16> keep_table() {
    std::array<std::array<std::uint64_t, 2>, 16> keep{};
    for (std::size_t size = 0; size < 16; ++size)
      for (std::size_t word = 0; word < 2; ++word) {
        const std::size_t bytes = size <= word * 8 ? 0 : size - word * 8;
        keep[size][word] = bytes >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * bytes)) - 1;
      }
    return keep;
  }
  static const std::array<std::array<std::uint64_t, 2>, 16> kKeep;
};
inline constexpr std::array<std::array<std::uint64_t, 2>, 16> PieceKey::kKeep = PieceKey::keep_table();

/// Ids of pieces of at most 15 bytes: open addressing in one flat table, at most half full.
class PieceTable {
 public:
  /// Has room for `pieces` pieces.
  explicit PieceTable(std::size_t pieces = 0)
      : entries_(std::bit_ceil(std::max<std::size_t>(pieces, 8) * 2)), shift_(64 - std::countr_zero(entries_.size())) {}

  /// `key` must not be there yet, and fewer pieces than there is room for.
  void insert(const PieceKey& key, std::int32_t id) {
    std::size_t slot = key.hash() >> shift_;
    while (entries_[slot].key.hi != 0) slot = (slot + 1) & (entries_.size() - 1);
    entries_[slot] = {key, id};
  }

  /// -1 where it is none of them.
  std::int32_t find(const PieceKey& key) const {
    for (std::size_t slot = key.hash() >> shift_;; slot = (slot + 1) & (entries_.size() - 1)) {
      const Entry& entry = entries_[slot];
      if (entry.key == key) return entry.id;
      if (entry.key.hi == 0) return -1;
    }
  }

 private:
  struct Entry {
    PieceKey key;
    std::int32_t id = -1;
  };
  std::vector<Entry> entries_;
  int shift_;
};

}  // namespace megatron::text
