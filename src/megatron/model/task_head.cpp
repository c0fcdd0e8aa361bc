#include "megatron/model/task_head.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "megatron/model/bert_heads.h"
#include "megatron/model/operators.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {
namespace {

using Gradients = std::vector<at::Tensor>;

/// The state of one token of each sample [b, h], at `positions_b` of the whole sequence, on every rank of `sequence`.
/// Each rank has the whole gradient of it; the one that has the token keeps it.
at::Tensor token_rows(const at::Tensor& hidden, const at::Tensor& positions_b, const comm::Group& sequence) {
  const std::int64_t here = hidden.size(0);
  const auto local = positions_b - sequence.rank() * here;
  const auto rows = local.clamp(0, here - 1), samples = at::arange(hidden.size(1), positions_b.options());
  const auto own_b1 = local.eq(rows).unsqueeze(1);
  const auto value = parallel::without_autograd([&] {
    const auto own = hidden.detach().index({rows, samples}) * own_b1;
    sequence.all_reduce(own);
    return own;
  });
  return parallel::with_backward(
      {hidden}, value, [shape = hidden.sizes().vec(), rows, samples, own_b1](const Gradients& grads) -> Gradients {
        auto dhidden = at::zeros(shape, grads[0].options());
        dhidden.index_put_({rows, samples}, grads[0] * own_b1);
        return {dhidden};
      });
}

/// The whole sequence [s, b, n] of parts [s/t, b, n]. Each rank has the whole gradient and keeps its part's.
at::Tensor whole_sequence(const at::Tensor& part, const comm::Group& sequence) {
  if (sequence.size() == 1) return part;
  const auto whole = parallel::without_autograd([&] { return sequence.all_gather(part.detach().contiguous(), 0); });
  return parallel::with_backward({part}, whole,
                                 [rank = sequence.rank(), length = part.size(0)](const Gradients& grads) -> Gradients {
                                   return {grads[0].narrow(0, rank * length, length).contiguous()};
                                 });
}

/// The matrix of the head, whole on each rank; a GPT's has no bias.
parallel::ColumnParallelLinear head_linear(const parallel::ParameterStore& parameters, bool bias) {
  if (bias) return whole_linear(parameters, "task_head");
  return {parameters.get("task_head.weight"), nullptr, comm::Group(), {.gather_output = false}};
}

/// [b, 2] targets of spans as two rows of classes, which are positions: all firsts, then all lasts.
at::Tensor positions_of(const at::Tensor& targets_b2) { return targets_b2.t().reshape({-1}); }

}  // namespace

TaskHead::TaskHead(const parallel::ParameterStore& parameters, const plan::ModelShape& shape, const comm::Group& tp,
                   bool sequence_parallel)
    : kind_(shape.task_head),
      first_token_(shape.pooled_tasks),
      linear_(head_linear(parameters, shape.pooled_tasks)),
      sequence_(sequence_parallel ? tp : comm::Group()) {
  if (first_token_ && kind_ != plan::Head::Span) pooler_ = whole_linear(parameters, "pooler.dense");
}

at::Tensor TaskHead::span_logits(const at::Tensor& hidden, const at::Tensor& lengths_b) const {
  const auto logits = whole_sequence(linear_.forward(hidden), sequence_).transpose(0, 1);  // [b, s, 2]
  if (!lengths_b.defined()) return logits;
  const auto padding = at::arange(logits.size(1), lengths_b.options()).unsqueeze(0).ge(lengths_b.unsqueeze(1));
  return logits.masked_fill(padding.unsqueeze(2), -std::numeric_limits<double>::infinity());
}

at::Tensor TaskHead::logits(const at::Tensor& hidden, const at::Tensor& lengths_b, const at::Tensor& targets,
                            const kernels::Dropout& dropout) const {
  if (kind_ == plan::Head::Span) return span_logits(hidden, lengths_b);
  const std::int64_t last = hidden.size(0) * sequence_.size() - 1;
  const auto positions = first_token_          ? at::zeros({hidden.size(1)}, hidden.options().dtype(at::kLong))
                         : lengths_b.defined() ? lengths_b.to(at::kLong) - 1
                                               : at::zeros({hidden.size(1)}, hidden.options().dtype(at::kLong)) + last;
  auto rows = token_rows(hidden, positions, sequence_);
  if (pooler_) rows = at::tanh(pooler_->forward(rows));
  if (dropout.p > 0) rows = model::dropout(rows.unsqueeze(0), dropout).squeeze(0);
  const auto logits = linear_.forward(rows);
  return kind_ == plan::Head::Classes ? logits : logits.view({targets.size(0), -1});
}

at::Tensor TaskHead::loss_sum(const at::Tensor& logits, const at::Tensor& targets, double gradient_scale) const {
  if (kind_ != plan::Head::Span) return class_loss_sum(logits, targets, gradient_scale);
  const auto rows = logits.permute({2, 0, 1}).reshape({-1, logits.size(1)});
  return class_loss_sum(rows, positions_of(targets), gradient_scale) * 0.5;
}

double TaskHead::count(const at::Tensor& targets) const {
  const double counted = static_cast<double>(targets.ge(0).sum().item<std::int64_t>());
  return kind_ == plan::Head::Span ? counted / 2 : counted;
}

}  // namespace megatron::model
