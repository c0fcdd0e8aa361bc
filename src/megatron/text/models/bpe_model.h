#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/models/piece_key.h"
#include "megatron/text/models/symbol_merge.h"
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {

/// Buffers of BpeModel::merge_piece; one a thread.
struct MergeScratch {
  std::vector<std::int32_t> ids;
  MergeRoom room;
  std::string known;  // a piece without the bytes that are no tokens
};

/// Byte-level byte-pair encoding with GPT-2's pre-tokenization (Radford et al. 2019, section 2.2).
class BpeModel : public TokenizerModel {
 public:
  static constexpr std::uint32_t kNoRank = PairQueue::kNone;

  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit BpeModel(Vocabulary vocabulary);

  /// Its cache has 2^cache_bits pieces of 32 bytes.
  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  /// Appends the tokens of a piece: the one it is as a whole, or what merging makes of it. Any number of threads.
  void encode_piece(std::string_view piece, MergeScratch& scratch, std::vector<std::int32_t>& out) const;

  /// Appends the tokens that merging makes of a piece: always the most important merge next, the leftmost of equals.
  /// The work for a piece of n bytes grows as n does, but for places that come out of order (symbol_merge.h).
  void merge_piece(std::string_view piece, MergeScratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Merge {
    std::int32_t left = -1, right = -1;
    std::uint32_t rank = kNoRank;
    std::int32_t id = -1;
  };

  void index_bytes();
  void index_merges();
  void index_tokens_of_pieces();
  /// Id of the token that has the bytes of a piece, or -1.
  std::int32_t token_of(std::string_view piece) const;
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

  // Per id: whether a piece with the bytes of this token becomes it, found out when the first such piece comes. Threads
  // may find out the same.
  enum class Whole : std::uint8_t { Unknown, Yes, No };
  std::unique_ptr<std::atomic<Whole>[]> is_whole_;
  std::array<std::int32_t, 256> byte_ids_{};    // -1: left out
  bool all_bytes_ = true;                       // none is
  std::vector<std::uint32_t> byte_pair_ranks_;  // [first << 8 | second]: ranks of merges of two bytes
  std::vector<std::int32_t> merged_;            // per rank: id of the result
  std::vector<Merge> merges_;                   // open addressing by (left, right)
  int merge_shift_ = 0;
  PieceTable short_tokens_;  // of at most 15 bytes
};

}  // namespace megatron::text
