#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "megatron/comm/group.h"
#include "megatron/model/operators.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/parameters.h"

// s sequence, b microbatch, h hidden.
namespace megatron::model {

/// A linear layer that is whole on each rank, with its bias where it has one.
parallel::ColumnParallelLinear whole_linear(const parallel::ParameterStore& parameters, const std::string& prefix,
                                            bool skip_bias_add = false, bool bias = true);

/// What a BERT (Devlin et al. 2018) has behind its encoder, besides the output layer: the transformation of each
/// token's state and, on the first token's, the head that tells the order of two segments. Their matrices are whole on
/// each rank. `hidden` [s, b, h] is the same on every rank or, with sequence_parallel, this rank's part [s/t, b, h].
class BertHeads {
 public:
  /// Finds its parameters by Megatron-Core's names: lm_head, pooler and binary_head.
  BertHeads(const parallel::ParameterStore& parameters, const plan::ModelShape& shape, double epsilon,
            const comm::Group& tp, bool sequence_parallel);

  /// What the output layer takes: norm(gelu(dense(hidden))), shaped as hidden. GELU is the exact one, whatever the
  /// layers have.
  at::Tensor token_states(const at::Tensor& hidden) const;

  /// tanh(dense(the first token's state)) [b, h], the same on every rank. Of a model with the sentence head. With
  /// sequence_parallel collective over tp: one broadcast.
  at::Tensor pooled(const at::Tensor& hidden) const;
  /// [b, 2] of pooled(): 0 the segments are in order, 1 they are not.
  at::Tensor sentence_logits(const at::Tensor& pooled_bh) const;

 private:
  parallel::ColumnParallelLinear dense_;
  Norm norm_;
  std::optional<parallel::ColumnParallelLinear> pooler_, sentence_;
  comm::Group sequence_;  ///< over which hidden is split
};

/// Sum over samples of the cross entropy of logits [b, classes]; labels [b] int64, those below 0 do not count. A
/// float64 scalar. What goes backward is multiplied by `gradient_scale`.
at::Tensor class_loss_sum(const at::Tensor& logits_bc, const at::Tensor& labels_b, double gradient_scale);

}  // namespace megatron::model
