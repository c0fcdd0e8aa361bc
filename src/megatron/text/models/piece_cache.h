#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megatron/text/models/piece_key.h"

namespace megatron::text {

/// Encodes text piece by piece, and keeps the tokens of the pieces it saw last. Most pieces are one token of a few
/// bytes that was seen a moment ago: they cost one probe of a table that stays in the L2. For models whose tokens of a
/// piece depend on nothing but its bytes; one thread each.
class PieceCache {
 public:
  /// Up to 2^bits pieces of 32 bytes, as many as the text has: an encoder for a short one costs little.
  explicit PieceCache(int bits)
      : entries_(std::size_t{1} << std::min(bits, kFirstBits)),
        shift_(64 - std::min(bits, kFirstBits)),
        least_shift_(64 - bits) {}

  /// Appends the tokens of the pieces that `cut` finds to `out`. `cut(piece)` calls piece(const char* begin, size) in
  /// order, with pieces that lie before `end`; `encode(std::string_view, out)` is asked for what is not known.
  template <class Cut, class Encode>
  void encode(const char* end, const Cut& cut, const Encode& encode, std::vector<std::int32_t>& out) {
    // Tokens gather here, so that the common case is a store without a test for the vector's capacity.
    std::array<std::int32_t, kGathered + 3> tokens;
    std::size_t count = 0;
    const auto flush = [&] {
      out.insert(out.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
      count = 0;
    };
    cut([&](const char* p, std::size_t size) {
      if (count > kGathered - 3) flush();
      if (size > PieceKey::kMaxBytes) {
        flush();
        encode(std::string_view(p, size), out);
        return;
      }
      const PieceKey key = PieceKey::of(p, size, static_cast<std::size_t>(end - p));
      Entry* entry = &entries_[key.hash() >> shift_];
      if (entry->key != key) [[unlikely]] {
        if (++missed_ > entries_.size() && shift_ > least_shift_) {
          grow();
          entry = &entries_[key.hash() >> shift_];
        }
        found_.clear();
        encode(std::string_view(p, size), found_);
        if (found_.size() > entry->ids.size()) {
          flush();
          out.insert(out.end(), found_.begin(), found_.end());
          return;
        }
        entry->key = key;
        entry->count = static_cast<std::int32_t>(found_.size());
        std::copy(found_.begin(), found_.end(), entry->ids.begin());
      }
      std::copy_n(entry->ids.begin(), 3, tokens.begin() + static_cast<std::ptrdiff_t>(count));
      count += static_cast<std::size_t>(entry->count);
    });
    flush();
  }

 private:
  static constexpr std::size_t kGathered = 1024;
  static constexpr int kFirstBits = 8;
  // Half a cache line: a piece and its at most 3 tokens.
  struct alignas(32) Entry {
    PieceKey key;
    std::int32_t count = 0;
    std::array<std::int32_t, 3> ids{};
  };

  /// Four times the entries; what is known stays.
  void grow() {
    shift_ = std::max(shift_ - 2, least_shift_);
    std::vector<Entry> known(std::size_t{1} << (64 - shift_));
    known.swap(entries_);
    for (const Entry& entry : known)
      if (entry.key.hi != 0) entries_[entry.key.hash() >> shift_] = entry;
    missed_ = 0;
  }

  std::vector<Entry> entries_;  // direct-mapped by the key's hash
  int shift_, least_shift_;
  std::size_t missed_ = 0;  // pieces that were not known since it grew
  std::vector<std::int32_t> found_;
};

}  // namespace megatron::text
