#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/tokenizer_model.h"

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

/// Buffers of BpeModel::merge_piece; one a thread.
struct MergeScratch {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> ranks;  // of the pair that begins at each symbol
  std::vector<std::uint32_t> previous, next;
  std::vector<std::uint64_t> heap;  // rank << 32 | position
  std::string known;                // a piece without the bytes that are no tokens
};

/// Byte-level byte-pair encoding with GPT-2's pre-tokenization (Radford et al. 2019, section 2.2).
class BpeModel : public TokenizerModel {
 public:
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit BpeModel(Vocabulary vocabulary);

  /// Its cache has 2^cache_bits pieces of 32 bytes.
  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  /// Id of a piece that is one token as a whole, or -1.
  std::int32_t whole_piece(const PieceKey& key) const {
    for (std::size_t slot = key.hash() >> short_shift_;; slot = (slot + 1) & (short_tokens_.size() - 1)) {
      const ShortToken& entry = short_tokens_[slot];
      if (entry.key == key) return entry.id;
      if (entry.key.hi == 0) return -1;
    }
  }
  /// The same for a piece of any length.
  std::int32_t whole_piece(std::string_view piece) const;

  /// Appends the tokens of a piece: always the most important merge next, the leftmost of equals.
  /// Costs O(n log n) for a piece of n bytes.
  void merge_piece(std::string_view piece, MergeScratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Merge {
    std::int32_t left = -1, right = -1;
    std::uint32_t rank = kNoRank;
    std::int32_t id = -1;
  };
  struct ShortToken {
    PieceKey key;
    std::int32_t id = -1;
  };

  void index_bytes();
  void index_merges();
  void index_whole_pieces();
  std::size_t merge_slot(std::int32_t left, std::int32_t right) const {
    const auto pair = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
    return (pair * 0x9E3779B97F4A7C15u) >> merge_shift_;
  }
  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const {
    for (std::size_t slot = merge_slot(left, right);; slot = (slot + 1) & (merges_.size() - 1)) {
      const Merge& merge = merges_[slot];
      if (merge.left == left && merge.right == right) return merge.rank;
      if (merge.left < 0) return kNoRank;
    }
  }
  void merge_short(MergeScratch& scratch) const;
  void merge_long(MergeScratch& scratch) const;

  std::vector<bool> is_whole_;                  // per id: a piece with the bytes of this token becomes it
  std::array<std::int32_t, 256> byte_ids_{};    // -1: left out
  bool all_bytes_ = true;                       // none is
  std::vector<std::uint32_t> byte_pair_ranks_;  // [first << 8 | second]: ranks of merges of two bytes
  std::vector<std::int32_t> merged_;            // per rank: id of the result
  std::vector<Merge> merges_;                   // open addressing by (left, right)
  int merge_shift_ = 0;
  std::vector<ShortToken> short_tokens_;  // open addressing: whole pieces of at most 15 bytes
  int short_shift_ = 0;
};

}  // namespace megatron::text
