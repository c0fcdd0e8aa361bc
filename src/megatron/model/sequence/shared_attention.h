#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/comm/group.h"
#include "megatron/kernels/attention.h"
#include "megatron/plan/ranks/sequence_share.h"

// Attention of ranks that share sequences (context parallelism). S tokens of a sequence, s = S / ranks of this rank, in
// two pieces; b microbatch, n query heads in g groups of this tensor-parallel rank, d head size.
namespace megatron::model {

/// The ranks that share each sequence, and how they attend to all of it; by default one rank alone.
struct SharedSequence {
  comm::Group ranks = {};
  plan::SequenceExchange exchange = plan::SequenceExchange::AllGather;

  plan::SequenceShare share() const { return {ranks.size(), ranks.rank()}; }
};

/// Attention of this rank's queries over the keys of whole sequences, as one rank that has all would compute it.
///
///   q        [s, b, g, n/g, d], or [s, b, n, d] where each head has its own key and value
///   k, v     [s, b, g, d], in cross attention of other sequences than q: [k, b, g, d]
///   options  of whole sequences: first_key [b, S], key_lengths, bias [n, S + K - 1], dropout by positions in them
///   returns  out [s, b, n, d]; logsumexp of as many numbers as [b, n, s], for the backward pass alone
///
/// Collective over sequence.ranks: AllGather one all-gather of k and v; AllToAll one all-to-all of q, k and v, one of
/// out, both n and g divide by the ranks; Ring ranks - 1 messages of k and v, while attention computes. Of one rank it
/// is kernels::attention() itself, with any options.
kernels::AttentionOutput shared_attention(const SharedSequence& sequence, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const kernels::AttentionOptions& options);

/// Writes dq, dk, dv, shaped as q, k, v; `forward`: what shared_attention() gave. `dbias` and `dsinks`, where there is
/// a bias and sinks: this rank's part of their gradient, shaped as they are; parts add up. What came from other
/// ranks is not kept, but sent again. Collective: AllGather an all-gather and a reduce-scatter; AllToAll
/// three all-to-alls; Ring ranks - 1 messages of k and v and as many of their gradients as ranks, in float32 or wider.
void shared_attention_backward(const SharedSequence& sequence, const at::Tensor& dout, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const kernels::AttentionOutput& forward,
                               const kernels::AttentionOptions& options, const at::Tensor& dq, const at::Tensor& dk,
                               const at::Tensor& dv, const at::Tensor& dbias = {}, const at::Tensor& dsinks = {});

}  // namespace megatron::model
