#include "megatron/parallel/output_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/max.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"
#include "megatron/parallel/backward.h"
#include "megatron/parallel/linear.h"

namespace megatron::parallel {
namespace {

/// For products that keep no copies of the largest matrix, of a last chunk of few rows too.
kernels::PackedWeight* without_copies(Parameter& weight) {
  return weight.packed.quantized() != nullptr ? &weight.packed : nullptr;
}

/// What the forward pass leaves: the loss and, where asked for, the gradient of hidden. n tokens.
struct LossPass {
  const ParameterPtr& weight;
  const ParameterPtr& bias;
  const comm::Group& tp;
  const comm::Group& sequence;
  const VocabParallelOutput::Options& options;
  kernels::VocabRange range;
  bool with_gradient;
  double gradient_scale;
  at::Tensor loss;         ///< float64 scalar
  at::Tensor dhidden;      ///< [n, h]; undefined without gradient
  at::Tensor dhidden_own;  ///< [n/t, h] where hidden is split along the sequence, else dhidden
  at::Tensor counted;      ///< [m] int64: the tokens that have logits; undefined: all

  /// Loss of all tokens of `hidden_nh`, and their gradients.
  /// `host_mask_n`: the mask, where it can be looked at.
  void run(const at::Tensor& hidden_nh, at::Tensor labels_n, at::Tensor mask_n, const at::Tensor& host_mask_n);
  /// Of `count` tokens from `begin` on among those that have logits, `last`: the last of them. labels, mask [count].
  void chunk(const at::Tensor& hidden_nh, const at::Tensor& labels, const at::Tensor& mask, std::int64_t begin,
             std::int64_t count, bool last);
  /// Starts the sum of d hidden over ranks.
  comm::WorkHandle reduce_dhidden() const {
    return sequence.size() > 1 ? sequence.reduce_scatter_async(dhidden_own, dhidden) : tp.all_reduce_async(dhidden);
  }
};

/// Logits x become cap tanh(x / cap), where there is a cap; gives the slope of that where it is asked for.
at::Tensor capped_(const at::Tensor& logits, double cap, bool with_slope) {
  if (cap == 0) return {};
  logits.div_(cap).tanh_();
  const auto slope = with_slope ? logits.square().neg_().add_(1) : at::Tensor();
  logits.mul_(cap);
  return slope;
}

/// -> logsumexp [n] over the whole vocabulary, and the loss [n] of each token. Two all-reduces.
std::pair<at::Tensor, at::Tensor> token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                               const kernels::VocabRange& range, double smoothing,
                                               const comm::Group& tp) {
  const auto pieces = kernels::softmax_pieces(logits, labels, range, smoothing > 0);
  const auto max = pieces.max.clone();
  tp.all_reduce(max, comm::ReduceOp::Max);
  std::vector<at::Tensor> parts{pieces.sum_exp * at::exp(pieces.max - max), pieces.target};
  if (smoothing > 0) parts.push_back(pieces.sum);
  const auto sums = at::stack(parts);
  tp.all_reduce(sums);
  const auto logsumexp = at::log(sums[0]) + max;
  auto loss = logsumexp - sums[1];
  if (smoothing > 0)
    loss = loss * (1 - smoothing) + (logsumexp - sums[2] / static_cast<double>(range.vocab)) * smoothing;
  return {logsumexp, loss};
}

/// The tokens whose mask is not 0, at least one; undefined where these are nearly all: copying their rows costs too.
at::Tensor counted_tokens(const at::Tensor& mask_n, at::Device device) {
  const auto counted = at::nonzero(mask_n).squeeze(1);
  if (counted.size(0) == 0) return at::zeros({1}, counted.options().device(device));
  return 8 * counted.size(0) <= 7 * mask_n.size(0) ? counted.to(device, /*non_blocking=*/true) : at::Tensor();
}

void LossPass::run(const at::Tensor& hidden_nh, at::Tensor labels_n, at::Tensor mask_n, const at::Tensor& host_mask_n) {
  counted = counted_tokens(host_mask_n, mask_n.device());
  if (counted.defined()) {
    labels_n = labels_n.index_select(0, counted);
    mask_n = mask_n.index_select(0, counted);
    if (with_gradient) dhidden.zero_();
  }
  const std::int64_t n = labels_n.size(0), step = options.chunk_tokens > 0 ? options.chunk_tokens : n;
  for (std::int64_t begin = 0; begin < n; begin += step) {
    const std::int64_t count = std::min(step, n - begin);
    chunk(hidden_nh, labels_n.narrow(0, begin, count), mask_n.narrow(0, begin, count), begin, count,
          begin + count == n);
  }
}

void LossPass::chunk(const at::Tensor& hidden_nh, const at::Tensor& labels, const at::Tensor& mask, std::int64_t begin,
                     std::int64_t count, bool last) {
  const auto rows = counted.defined() ? counted.narrow(0, begin, count) : at::Tensor();
  const auto hidden = rows.defined() ? hidden_nh.index_select(0, rows) : hidden_nh.narrow(0, begin, count);
  kernels::PackedWeight* const packed = without_copies(*weight);
  const auto logits = kernels::linear(hidden, weight->arrived(), packed);
  if (bias) logits.add_(bias->arrived());
  const auto slope = capped_(logits, options.soft_cap, with_gradient);
  const auto [logsumexp, losses] = token_losses(logits, labels, range, options.label_smoothing, tp);
  loss += (losses * mask).sum(at::kDouble);
  if (!with_gradient) return;
  const auto scale = gradient_scale == 1 ? mask : mask * gradient_scale;
  kernels::cross_entropy_gradient_(logits, labels, range, logsumexp, scale, options.label_smoothing);
  if (slope.defined()) logits.mul_(slope);
  const auto dx = kernels::linear_input_gradient(logits, weight->arrived(), packed);
  if (rows.defined())
    dhidden.index_copy_(0, rows, dx);
  else
    dhidden.narrow(0, begin, count).copy_(dx);
  // All of d hidden is there with the last chunk: its sum over ranks overlaps the last product for the weight.
  const auto reduced = last ? reduce_dhidden() : nullptr;
  if (!weight->frozen())
    kernels::linear_weight_gradient(weight->gradient_to_write(), logits, hidden, begin == 0 ? weight->beta() : 1.0);
  if (bias && !bias->frozen())
    kernels::accumulate_bias_gradient(bias->gradient_to_write(), logits, begin == 0 ? bias->beta() : 1.0);
  if (reduced) reduced->wait();
}

void check_labels(const at::Tensor& labels, const at::Tensor& mask, std::int64_t vocab) {
  const auto outside = at::logical_and(at::logical_or(labels.lt(0), labels.ge(vocab)), mask.ne(0));
  if (!outside.any().item<bool>()) return;
  const auto first = at::nonzero(outside)[0];
  const auto position = first[0].item<std::int64_t>(), sample = first[1].item<std::int64_t>();
  throw ConfigError(rule_got_fix(concat("each label that counts in the loss must be one of 0 … ", vocab - 1),
                                 concat("label ", labels[position][sample].item<std::int64_t>(), " at position ",
                                        position, " of sample ", sample)));
}

kernels::VocabRange range_of(const Parameter& weight, std::int64_t vocab) {
  const std::int64_t begin = weight.spec.begin();
  return {.begin = begin, .end = std::clamp(vocab, begin, begin + weight.value.size(0)), .vocab = vocab};
}

/// [n] int64: the likeliest token of the whole vocabulary, the first of equals. Two all-reduces.
at::Tensor likeliest_tokens(const at::Tensor& logits, const kernels::VocabRange& range, const comm::Group& tp) {
  const auto options = logits.options().dtype(at::kDouble);
  const std::int64_t n = logits.size(0), columns = range.end - range.begin;
  auto best = at::full({n}, -std::numeric_limits<double>::infinity(), options), token = best.clone();
  if (columns > 0) {
    const auto [value, column] = at::max(logits.narrow(1, 0, columns), 1);
    best = value.to(at::kDouble);
    token = column.add(range.begin).neg().to(at::kDouble);  // the greatest of them is the first
  }
  const auto whole = best.clone();
  tp.all_reduce(whole, comm::ReduceOp::Max);
  token = token.masked_fill(best.ne(whole), -std::numeric_limits<double>::infinity());
  tp.all_reduce(token, comm::ReduceOp::Max);
  return token.neg().clamp_max(static_cast<double>(range.vocab)).to(at::kLong);  // NaN: none of them
}

}  // namespace

VocabParallelOutput::VocabParallelOutput(ParameterPtr weight, comm::Group tp, Options options, ParameterPtr bias)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      tp_(std::move(tp)),
      sequence_(options.sequence_parallel ? tp_ : comm::Group()),
      options_(options) {}

at::Tensor VocabParallelOutput::loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& mask,
                                         double gradient_scale, const Labels& host) const {
  const Labels seen = host.labels.defined() ? host : Labels{labels, mask};
  check_labels(seen.labels, seen.mask, options_.vocab);
  const bool with_gradient = records_gradient({hidden, weight_->value});
  LossPass pass{.weight = weight_,
                .bias = bias_,
                .tp = tp_,
                .sequence = sequence_,
                .options = options_,
                .range = range_of(*weight_, options_.vocab),
                .with_gradient = with_gradient,
                .gradient_scale = gradient_scale,
                .loss = {},
                .dhidden = {},
                .dhidden_own = {},
                .counted = {}};
  without_autograd([&] {
    const auto hidden_nh = sequence_.all_gather(hidden.detach()).reshape({-1, hidden.size(-1)});
    pass.loss = at::zeros({}, hidden.options().dtype(at::kDouble));
    if (with_gradient) {
      pass.dhidden = at::empty_like(hidden_nh);
      pass.dhidden_own = sequence_.size() > 1
                             ? at::empty({hidden_nh.size(0) / sequence_.size(), hidden.size(-1)}, hidden_nh.options())
                             : pass.dhidden;
    }
    pass.run(hidden_nh, labels.reshape({-1}), mask.reshape({-1}), seen.mask.reshape({-1}));
    if (!with_gradient || weight_->frozen()) return;
    weight_->gradient_written();
    if (bias_) bias_->gradient_written();
  });
  auto backward = [dhidden = pass.dhidden_own, shape = hidden.sizes().vec()](const std::vector<at::Tensor>& grads) {
    if (grads[0].is_cpu() && grads[0].item<double>() != 1)  // to ask another device is to wait for it
      throw std::logic_error(
          "go backward from the loss sum as it is: its gradients were written for an upstream gradient of 1");
    return std::vector<at::Tensor>{dhidden.view(shape)};
  };
  return with_backward({hidden, weight_->value}, pass.loss, std::move(backward));
}

VocabParallelOutput::TokenLosses VocabParallelOutput::token_losses(const at::Tensor& hidden, const at::Tensor& labels,
                                                                   bool likeliest) const {
  check_labels(labels.unsqueeze(1), at::ones_like(labels).unsqueeze(1), options_.vocab);
  return without_autograd([&] {
    const auto range = range_of(*weight_, options_.vocab);
    const std::int64_t n = hidden.size(0), step = options_.chunk_tokens > 0 ? options_.chunk_tokens : n;
    std::vector<at::Tensor> losses, tokens;
    for (std::int64_t begin = 0; begin < n; begin += step) {
      const std::int64_t count = std::min(step, n - begin);
      const auto rows = hidden.detach().narrow(0, begin, count);
      const auto logits = kernels::linear(rows, weight_->arrived(), without_copies(*weight_));
      if (bias_) logits.add_(bias_->arrived());
      capped_(logits, options_.soft_cap, false);
      losses.push_back(parallel::token_losses(logits, labels.narrow(0, begin, count), range, 0, tp_).second);
      if (likeliest) tokens.push_back(likeliest_tokens(logits, range, tp_));
    }
    return TokenLosses{at::cat(losses), likeliest ? at::cat(tokens) : at::Tensor()};
  });
}

at::Tensor VocabParallelOutput::logits(const at::Tensor& hidden) const {
  return without_autograd([&] {
    const auto local = kernels::linear(sequence_.all_gather(hidden.detach()), weight_->arrived(), &weight_->packed);
    if (bias_) local.add_(bias_->arrived());
    capped_(local, options_.soft_cap, false);
    return tp_.all_gather(local, -1).narrow(-1, 0, options_.vocab);
  });
}

at::Tensor VocabParallelOutput::differentiable_logits(const at::Tensor& hidden) const {
  const ColumnParallelLinear layer(weight_, bias_, tp_,
                                   {.gather_output = true, .sequence_parallel = options_.sequence_parallel});
  const auto logits = layer.forward(hidden).narrow(-1, 0, options_.vocab);
  return options_.soft_cap > 0 ? logits.div(options_.soft_cap).tanh().mul(options_.soft_cap) : logits;
}

}  // namespace megatron::parallel
