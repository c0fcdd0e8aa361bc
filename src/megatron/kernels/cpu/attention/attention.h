#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "megatron/kernels/cpu/elementwise/element.h"

// Attention on pointers to float32, bf16 or fp16; attention.h says what is computed. Products, scores and sums are
// float32: what is stored in halves is converted block by block on its way into the cache. One call is one piece of
// work for one thread.
namespace megatron::kernels::cpu {

/// One query head: the `member`-th of those that share the keys and values of `group`, in sample `b`.
struct Head {
  std::size_t b, group, member;
};

/// A [position, batch, group, member, d] tensor, d contiguous; strides in bytes. Keys and values: member 0. With
/// `blocks`, positions lie in blocks of 1 << block_shift of them: the i-th in block blocks[i] of those at `data`.
template <class Byte>
struct HeadsOf {
  Byte* data;
  std::ptrdiff_t position, batch, group, member;
  const std::int64_t* blocks = nullptr;
  std::ptrdiff_t block = 0;  ///< from one block to the next
  unsigned block_shift = 0;
  Byte* at(std::size_t p, const Head& head) const {
    std::ptrdiff_t first = 0;
    if (blocks != nullptr) {
      first = static_cast<std::ptrdiff_t>(blocks[p >> block_shift]) * block;
      p &= (std::size_t{1} << block_shift) - 1;
    }
    return data + first + static_cast<std::ptrdiff_t>(p) * position + static_cast<std::ptrdiff_t>(head.b) * batch +
           static_cast<std::ptrdiff_t>(head.group) * group + static_cast<std::ptrdiff_t>(head.member) * member;
  }
  /// How many of `count` positions from p on lie `position` bytes apart.
  std::size_t together(std::size_t p, std::size_t count) const {
    if (blocks == nullptr) return count;
    const std::size_t rows = std::size_t{1} << block_shift;
    return std::min(count, rows - (p & (rows - 1)));
  }
};
/// Positions of the smallest block that the kernels read: their panels of keys lie in one.
inline constexpr std::size_t kLeastBlock = 64;
using Heads = HeadsOf<const std::byte>;
using MutableHeads = HeadsOf<std::byte>;

struct AttentionProblem {
  std::size_t queries, keys, batch, groups, sharing, size;  ///< sharing: query heads of a group; size: of a head
  ElementType type;                                         ///< of q, k, v, out and their gradients
  float scale;                                              ///< positive
  float soft_cap;                                           ///< of scaled scores; 0: none
  bool causal;
  std::size_t ahead;                ///< where causal: keys that a query sees besides
  const std::int32_t* first_key;    ///< [batch, queries], or null
  const std::int32_t* key_lengths;  ///< [batch], or null
  Heads q, k, v;
  // Dropout of the probabilities; sample_ids null: none.
  const std::int64_t* sample_ids;
  std::uint64_t dropout_key;
  std::uint32_t dropout_threshold;
  float keep_scale;
  std::size_t head_offset;
  std::size_t first_query, first_masked_key;    ///< of the whole sequence's, those that are here
  std::size_t sequence_queries, sequence_keys;  ///< that the mask is drawn for
  /// [heads, bias_stride], what is added to scaled scores by distance (attention.h), 16 more than there are distances;
  /// or null.
  const float* bias;
  std::size_t bias_stride;
  const float* sinks;  ///< [heads], a score of each without a value; or null
  float* dbias;        ///< [batch, heads, bias_stride]: backward adds each head's gradient of it

  std::size_t heads() const { return groups * sharing; }
  /// The i-th of all batch * heads() query heads, those of a group side by side.
  Head head(std::size_t i) const { return {i / heads(), i % heads() / sharing, i % sharing}; }
  std::size_t number_of(const Head& head) const { return head.group * sharing + head.member; }
  /// Of the first query in [batch, heads, queries].
  std::size_t row_of(const Head& head) const { return (head.b * heads() + number_of(head)) * queries; }
};

/// Keys [begin, end), by position: those that a query sees, or the hull of those that several see.
struct KeyRange {
  std::size_t begin, end;
};

/// The keys that query `query` of sample `b` sees.
inline KeyRange visible(const AttentionProblem& p, std::size_t b, std::size_t query) {
  const std::size_t keys =
      p.key_lengths == nullptr ? p.keys : std::min(p.keys, static_cast<std::size_t>(std::max(p.key_lengths[b], 0)));
  const std::size_t last = query + p.keys + 1 + p.ahead;  // one past, shifted by `queries` to stay unsigned
  const std::size_t end = !p.causal ? keys : last > p.queries ? std::min(keys, last - p.queries) : 0;
  const std::int32_t first = p.first_key != nullptr ? std::max(p.first_key[b * p.queries + query], 0) : 0;
  return {std::min(static_cast<std::size_t>(first), end), end};
}

/// The running softmax of one query (Milakov & Gimelshein 2018): largest score so far and the sum of exp relative to
/// it.
struct Running {
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
};

/// Ends the softmax of a row of `head`: what the sum of its weighted values is multiplied by, and its log-sum-exp.
struct EndOfRow {
  float factor, logsumexp;
};
inline EndOfRow end_of_row(const AttentionProblem& p, const Head& head, const Running& running) {
  if (p.sinks == nullptr)
    return {running.sum > 0 ? 1.0f / running.sum : running.sum, running.max + std::log(running.sum)};
  const float sink = p.sinks[p.number_of(head)], max = std::max(running.max, sink);
  const float keys = std::exp(running.max - max), sum = keys * running.sum + std::exp(sink - max);
  return {keys / sum, max + std::log(sum)};
}

/// Queries that one call of attention_forward computes.
inline constexpr std::size_t kQueryBlock = 96;
/// Up to this many queries, keys and values are read where they lie (attention_of_few): decoding with a cache.
inline constexpr std::size_t kFewQueries = 8;
/// Keys that a thread reads at a time for attention_of_few.
inline constexpr std::size_t kFewKeys = 128;

/// Floats that hold the keys and values of one group, laid out for the products.
std::size_t packed_floats(const AttentionProblem& problem);
/// Scratch of one thread, in floats.
std::size_t forward_scratch_floats(const AttentionProblem& problem);

void pack_keys_and_values(const AttentionProblem& problem, const Head& head, float* packed);
/// Queries [block * kQueryBlock, …) of one head, `packed` of its group.
void attention_forward(const AttentionProblem& problem, const Head& head, std::size_t block, const float* packed,
                       const MutableHeads& out, float* logsumexp_bns, float* scratch);

/// Attention of at most kFewQueries queries, without dropout.
struct FewQueries : AttentionProblem {
  MutableHeads out;
  float* logsumexp_bns;
};
/// A group's queries over one of the blocks of kFewKeys keys that a problem is cut into.
struct FewQueriesPiece {
  const AttentionProblem* problem;
  Head group;
  std::size_t block;
  std::size_t first_key() const { return block * kFewKeys; }
  std::size_t end_key() const { return std::min(problem->keys, first_key() + kFewKeys); }
};
/// Computes problems that differ in batch, keys and where things lie, over the threads. `memory`: few_queries_floats()
/// of one that has the batch of all and the most keys, aligned to 64 bytes.
void attention_of_few(std::span<const FewQueries> problems, float* memory);
std::size_t few_queries_floats(const AttentionProblem& problem);

}  // namespace megatron::kernels::cpu
