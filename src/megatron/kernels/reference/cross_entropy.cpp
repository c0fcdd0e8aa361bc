#include "megatron/kernels/cross_entropy.h"

#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <limits>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

/// Columns of this rank that are tokens, not padding.
std::int64_t real_columns(const at::Tensor& logits, const VocabRange& range) {
  return std::clamp<std::int64_t>(range.end - range.begin, 0, logits.size(1));
}

}  // namespace

SoftmaxPieces softmax_pieces(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             bool smoothing) {
  const at::Tensor x_nv = up(logits.narrow(1, 0, real_columns(logits, range)));
  SoftmaxPieces pieces;
  if (x_nv.size(1) == 0) {  // a rank that holds padding alone
    pieces.sum_exp = at::zeros_like(labels, x_nv.options());
    pieces.max = pieces.sum_exp - std::numeric_limits<double>::infinity();
    pieces.target = pieces.sum_exp.clone();
    if (smoothing) pieces.sum = pieces.sum_exp.clone();
    return pieces;
  }
  pieces.max = x_nv.amax(1);
  pieces.sum_exp = (x_nv - pieces.max.unsqueeze(1)).exp_().sum(1);
  const at::Tensor column = labels - range.begin;
  const at::Tensor here = (column >= 0).logical_and(column < x_nv.size(1));
  pieces.target =
      x_nv.gather(1, column.clamp(0, x_nv.size(1) - 1).unsqueeze(1)).squeeze(1).masked_fill(here.logical_not(), 0);
  if (smoothing) pieces.sum = x_nv.sum(1);
  return pieces;
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             const at::Tensor& logsumexp, const at::Tensor& scale, double label_smoothing) {
  const std::int64_t columns = real_columns(logits, range);
  if (columns > 0) {
    const at::Tensor x_nv = logits.narrow(1, 0, columns);
    at::Tensor gradient = (up(x_nv) - logsumexp.unsqueeze(1)).exp_();
    if (label_smoothing > 0) gradient.sub_(label_smoothing / static_cast<double>(range.vocab));
    const at::Tensor column = labels - range.begin;
    const at::Tensor here = (column >= 0).logical_and(column < columns).to(gradient.scalar_type());
    gradient.scatter_add_(1, column.clamp(0, columns - 1).unsqueeze(1), (here * -(1 - label_smoothing)).unsqueeze(1));
    x_nv.copy_(gradient.mul_(scale.unsqueeze(1)));
  }
  if (columns < logits.size(1)) logits.narrow(1, columns, logits.size(1) - columns).zero_();
}

}  // namespace megatron::kernels::reference
