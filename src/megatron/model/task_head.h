#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "megatron/comm/group.h"
#include "megatron/kernels/dropout.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/parameters.h"

// s sequence, b microbatch, h hidden.
namespace megatron::model {

/// What a model that is fine-tuned for a task has instead of an output layer (plan::Head). Its matrix, and that of a
/// BERT's pooler below it, are whole on each rank. `hidden` [s, b, h] is the same on every rank or, with
/// sequence_parallel, this rank's part [s/t, b, h].
///
/// | head | reads | logits | targets int64 |
/// |--|--|--|--|
/// | Classes | the pooler on the first token (BERT), or the last token (GPT, without a bias) | [b, classes] | [b] |
/// | Options | the same; the options of a question are neighbours | [questions, options] | [questions] |
/// | Span | each token | [b, s, 2], -infinity on the padding | [b, 2]: first and last token of the answer |
///
/// The loss of a target is its cross entropy, of a span the mean of the two. Targets below 0 do not count.
class TaskHead {
 public:
  /// Finds its parameters by name: task_head, pooler.dense.
  TaskHead(const parallel::ParameterStore& parameters, const plan::ModelShape& shape, const comm::Group& tp,
           bool sequence_parallel);

  /// `lengths_b`: Batch::key_lengths_b. `dropout`: of what classes and options are computed from. The same on every
  /// rank. With sequence_parallel collective over tp: one collective, a row per sample, of spans two numbers per token.
  at::Tensor logits(const at::Tensor& hidden, const at::Tensor& lengths_b, const at::Tensor& targets,
                    const kernels::Dropout& dropout) const;
  /// A float64 scalar. What goes backward is multiplied by `gradient_scale`.
  at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& targets, double gradient_scale) const;
  /// Targets that count.
  double count(const at::Tensor& targets) const;

 private:
  at::Tensor span_logits(const at::Tensor& hidden, const at::Tensor& lengths_b) const;

  plan::Head kind_;
  bool first_token_;
  std::optional<parallel::ColumnParallelLinear> pooler_;
  parallel::ColumnParallelLinear linear_;
  comm::Group sequence_;  ///< over which hidden is split
};

}  // namespace megatron::model
