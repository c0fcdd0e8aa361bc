#pragma once
#include <vector>

#include "megatron/model/sequence/shared_attention.h"

// The three ways of shared_attention.h, and what they have in common.
namespace megatron::model::sequence {

using kernels::AttentionOptions;
using kernels::AttentionOutput;

/// Queries, keys and values of a rank, or their gradients.
struct Triple {
  at::Tensor q, k, v;
};

/// Tokens of a whole sequence's queries and keys.
struct Lengths {
  std::int64_t queries = 0, keys = 0;
};
Lengths whole_lengths(const comm::Group& ranks, const Triple& in);

/// One of the two stretches of a sequence that a rank has: rows [row, row + positions.size()) of its own.
struct SequenceChunk {
  plan::Positions positions;
  std::int64_t row = 0;

  at::Tensor rows(const at::Tensor& x) const { return x.narrow(0, row, positions.size()); }
};
/// The pieces of rank `rank`, where each rank has `rows` tokens of a sequence.
std::vector<SequenceChunk> pieces_of(int ranks, int rank, std::int64_t rows);

/// The keys that some of `queries` may see end before this position of a sequence of so many `keys`.
std::int64_t end_of_seen(const AttentionOptions& options, std::int64_t keys, const plan::Positions& queries);

/// `options` of whole sequences for some of the queries and keys, which end at end_of_seen() of the queries or before.
AttentionOptions options_of_part(const AttentionOptions& options, const Lengths& whole, const plan::Positions& queries,
                                 const plan::Positions& keys);

/// Of a bias of whole sequences [n, queries + keys - 1], or its gradient, the distances of some of them: a view.
at::Tensor bias_of_part(const at::Tensor& bias, const Lengths& whole, const plan::Positions& queries,
                        const plan::Positions& keys);

/// Rows [ranks * s, …] that lie rank by rank, each rank's two pieces one after the other, in the order of positions;
/// by_rank() is the inverse.
at::Tensor by_position(const at::Tensor& by_rank, int ranks);
at::Tensor by_rank(const at::Tensor& by_position, int ranks);

/// [s, b, g, d] twice -> [s, b, g, 2, d], contiguous.
at::Tensor keys_and_values(const at::Tensor& k, const at::Tensor& v);

// Shapes and collectives: shared_attention() and shared_attention_backward(); of more than one rank.
AttentionOutput gathered_attention(const comm::Group& ranks, const Triple& in, const AttentionOptions& options);
void gathered_attention_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                                 const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                                 const at::Tensor& dbias);

AttentionOutput attention_by_heads(const comm::Group& ranks, const Triple& in, const AttentionOptions& options);
void attention_by_heads_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                                 const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                                 const at::Tensor& dbias, const at::Tensor& dsinks);

AttentionOutput ring_attention(const comm::Group& ranks, const Triple& in, const AttentionOptions& options);
void ring_attention_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                             const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                             const at::Tensor& dbias);

}  // namespace megatron::model::sequence
