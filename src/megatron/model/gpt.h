#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/kernels/activation.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters.h"

// s sequence, b microbatch, h hidden, n heads, d head size, f feed-forward, v vocabulary.
namespace megatron::model {

/// What a model computes on: one microbatch.
struct Batch {
  at::Tensor tokens_bs;        ///< [b, s] int64
  at::Tensor labels_bs;        ///< [b, s] int64; undefined for generation
  at::Tensor loss_mask_bs;     ///< [b, s] of the model's dtype; undefined: all ones
  at::Tensor position_ids_bs;  ///< [b, s] int64; undefined: 0, 1, 2, …
  at::Tensor first_key_bs;     ///< [b, s] int32, see kernels::AttentionOptions; undefined: 0
  at::Tensor sample_ids;       ///< [b] int64 on the CPU: which training samples these are, for dropout
};

/// The loss before any averaging: summed over tokens with mask, and their number. Averaging happens once, over the
/// whole global batch, whatever the layout.
struct LossSum {
  at::Tensor sum;      ///< scalar, differentiable
  double count = 0;    ///< sum of the loss mask
};

struct GptOptions {
  plan::GptShape shape;
  kernels::Gelu gelu = kernels::Gelu::Tanh;
  double layernorm_epsilon = 1e-5;
  double hidden_dropout = 0, attention_dropout = 0;
  double label_smoothing = 0;
  std::int64_t loss_chunk_tokens = 256;
  bool recompute_gelu = true;
  std::uint64_t seed = 1234;  ///< of dropout
};

/// Keys and values of the tokens seen, per layer, this rank's heads: [positions, b, n/t, d].
struct KvCache {
  std::vector<at::Tensor> keys, values;
  std::int64_t length = 0;    ///< positions filled
  std::int64_t capacity = 0;
};

/// A GPT (pre-norm blocks, learned positions) tensor-parallel over `tp`. Stores only the group and its parameters.
class Gpt {
 public:
  Gpt(GptOptions options, const parallel::ParameterStore& parameters, comm::Group tp);

  /// Forward pass with loss; `training` turns dropout on. Collective over tp: 2 all-reduces a layer forward, 2
  /// backward, one for the embedding forward, one for the last hidden state's gradient backward, and [tokens]-sized
  /// ones in the loss. Call `loss.sum.backward()`; gradients arrive in the parameters' buffers.
  LossSum loss(const Batch& batch, bool training) const;

  /// Logits [b, s, vocab] (full vocabulary gathered, padding cut), no dropout. Collective over tp.
  at::Tensor logits(const Batch& batch) const;

  /// Logits [b, vocab] after the last of `tokens_bs`, whose first position is cache.length; fills the cache. Collective over tp.
  at::Tensor next_logits(const at::Tensor& tokens_bs, KvCache& cache) const;
  KvCache make_cache(std::int64_t batch, std::int64_t capacity) const;

  const GptOptions& options() const;
  ~Gpt();
  Gpt(Gpt&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::model
