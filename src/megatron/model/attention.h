#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/rope.h"
#include "megatron/model/block.h"
#include "megatron/model/operators.h"
#include "megatron/model/sequence/shared_attention.h"
#include "megatron/plan/layer.h"

// Attention as a layer's description (plan/layer.h) has it: the same for training, scoring and every way of decoding.
// s sequence, b microbatch, n heads and g groups of this rank, d head size.
namespace megatron::model {

/// The heads of a fused projection qkv [s, b, g * (n/g + 2) * d], rows per group: its queries, key, value. Views.
struct Heads {
  at::Tensor q;        ///< [s, b, g, n/g, d]; [s, b, n, d] where each head has its own key and value
  at::Tensor k, v;     ///< [s, b, g, d]
  at::Tensor q_and_k;  ///< [s, b, g, n/g + 1, d]: what rotary positions rotate
};
Heads heads_of(const at::Tensor& qkv, std::int64_t groups, std::int64_t head_size);

/// The projection with its queries and keys normalized, head by head, by a norm of each; in qkv's memory.
at::Tensor normalized_heads(const at::Tensor& qkv, std::int64_t groups, std::int64_t head_size,
                            const std::vector<Norm>& norms);

/// Rotary positions of a microbatch.
struct Rotary {
  kernels::RopeTable table;    ///< its tensors are undefined where there are none
  at::Tensor position_ids_bs;  ///< [b, s] int64; undefined: 0, 1, 2, …

  /// Turns queries and keys by their positions, in place; back with `inverse`.
  void rotate(const Heads& heads, bool inverse = false) const;
};

/// What self_attention needs to know of its input and does with it.
struct AttentionForm {
  std::int64_t groups = 0, head_size = 0;  ///< of this rank
  Rotary rotary;
  kernels::AttentionOptions options;  ///< of whole sequences, also where ranks share them
  SharedSequence sequence = {};
  bool again = false;  ///< the output is computed again in the backward pass, once, rather than kept
  /// Takes the gradient of options.bias, where there is one.
  std::function<void(const at::Tensor& dbias)> bias_gradient = {};
  parallel::ParameterPtr sinks = nullptr;  ///< [n] scores without values, or null
};

/// Attention of the fused projection qkv (Heads) over its own keys -> [s, b, n * d]. The heads are read where they lie,
/// rotated there, and their gradients written where they belong. Keeps qkv and the output. Where ranks share sequences,
/// over the keys of all of them, and collective over these ranks both ways.
Recomputable self_attention(const at::Tensor& qkv, const AttentionForm& form);

/// As self_attention(), with queries [s, b, n * d] over keys and values [k, b, g * 2 * d], whose rows are per group its
/// key, then its value. Without rotary positions.
Recomputable cross_attention(const at::Tensor& queries, const at::Tensor& keys_and_values, const AttentionForm& form);

/// Rows of the keys that `s` queries of each of `b` sequences are: s of them from `begin` on.
struct QueryRows {
  std::int64_t begin = 0, s = 0, b = 0;
  at::Tensor first_key_bs = {};  ///< [b, s] int32: the first key that each may see; undefined: 0
  at::Device device = at::kCPU;
};

/// What a layer's own attention asks of the kernel, but for dropout, padding and bias.
kernels::AttentionOptions attention_options(const plan::SelfAttention& attention, const QueryRows& rows = {});
kernels::AttentionOptions attention_options(const plan::CrossAttention& attention);
/// Options of a pass without gradients: those above, with the branch's sinks; `branch` is a plan::SelfAttention.
kernels::AttentionOptions attention_options(const BranchModules& branch, const QueryRows& rows);

/// Sinks as attention takes them: float32, of float64 float64; of a branch undefined where it has none.
at::Tensor sink_scores(const parallel::Parameter& sinks);
at::Tensor sink_scores(const BranchModules& branch);

}  // namespace megatron::model
