#pragma once
#include <cstddef>
#include <cstdint>

// Attention on float32 pointers; attention.h says what is computed. One call is one piece of work for one thread.
namespace megatron::kernels::cpu {

/// A [position, batch, head, d] tensor, d contiguous; strides in elements.
struct Heads {
  const float* data;
  std::ptrdiff_t position, batch, head;
  const float* at(std::size_t p, std::size_t b, std::size_t n) const {
    return data + static_cast<std::ptrdiff_t>(p) * position + static_cast<std::ptrdiff_t>(b) * batch +
           static_cast<std::ptrdiff_t>(n) * head;
  }
};
struct MutableHeads {
  float* data;
  std::ptrdiff_t position, batch, head;
  float* at(std::size_t p, std::size_t b, std::size_t n) const {
    return data + static_cast<std::ptrdiff_t>(p) * position + static_cast<std::ptrdiff_t>(b) * batch +
           static_cast<std::ptrdiff_t>(n) * head;
  }
};

struct AttentionProblem {
  std::size_t queries, keys, batch, heads, size;  ///< size: of a head
  float scale;                                    ///< positive
  bool causal;
  const std::int32_t* first_key;  ///< [batch, queries], or null
  Heads q, k, v;
  // Dropout of the probabilities; sample_ids null: none.
  const std::int64_t* sample_ids;
  std::uint64_t dropout_key;
  std::uint32_t dropout_threshold;
  float keep_scale;
  std::size_t head_offset;
};

/// Queries that one call of attention_forward computes.
inline constexpr std::size_t kQueryBlock = 96;
/// Up to this many queries, keys and values are read where they lie (attention_few_queries): decoding with a cache.
inline constexpr std::size_t kFewQueries = 8;

/// Floats that hold the keys and values of one (batch, head), laid out for the products.
std::size_t packed_floats(const AttentionProblem& problem);
/// Scratch of one thread, in floats.
std::size_t forward_scratch_floats(const AttentionProblem& problem);
std::size_t backward_scratch_floats(const AttentionProblem& problem);

void pack_keys_and_values(const AttentionProblem& problem, std::size_t b, std::size_t n, float* packed);
/// Queries [block * kQueryBlock, …) of (b, n).
void attention_forward(const AttentionProblem& problem, std::size_t b, std::size_t n, std::size_t block,
                       const float* packed, const MutableHeads& out, float* logsumexp_bns, float* scratch);
/// All queries of (b, n), without dropout.
void attention_few_queries(const AttentionProblem& problem, std::size_t b, std::size_t n, const MutableHeads& out,
                           float* logsumexp_bns, float* scratch);
/// dq, dk, dv of (b, n).
void attention_backward(const AttentionProblem& problem, std::size_t b, std::size_t n, const Heads& dout,
                        const Heads& out, const float* logsumexp_bns, const MutableHeads& dq, const MutableHeads& dk,
                        const MutableHeads& dv, float* scratch);

}  // namespace megatron::kernels::cpu
