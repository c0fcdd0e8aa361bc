#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "megatron/kernels/activation.h"
#include "megatron/plan/layer.h"

// Parts of DenseModel: activations, losses of two classes, mixtures of experts.

namespace megatron::testing {

inline at::Tensor activated(const at::Tensor& x, kernels::Activation form) {
  using kernels::Activation;
  switch (form) {
    case Activation::GeluErf:
      return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
    case Activation::Silu:
      return x / (1 + (-x).exp());
    case Activation::Relu:
      return x.clamp_min(0);
    case Activation::SquaredRelu:
      return x.clamp_min(0) * x.clamp_min(0);
    case Activation::GeluTanh:
      break;
  }
  return x * 0.5 * (1 + at::tanh(std::sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x)));
}

/// Summed over the sequences [b] whose label is 0 or 1, of logits [b, 2].
inline at::Tensor loss_of_two_classes(const at::Tensor& logits, const at::Tensor& labels) {
  auto sum = at::zeros({}, at::kDouble);
  for (std::int64_t k = 0; k < labels.size(0); ++k) {
    const auto label = labels[k].item<std::int64_t>();
    if (label >= 0) sum = sum + (1 + (logits[k][1 - label] - logits[k][label]).exp()).log();
  }
  return sum;
}

struct DenseExperts {
  at::Tensor y;     ///< [b, s, h]
  at::Tensor loss;  ///< the auxiliary losses of every sequence, times its tokens that count
};

/// A mixture of experts on x [b, s, h]: every expert on every token, of which those count that the token goes to.
/// `linear`: of x by the name of its weight; `mlp`: of x by the beginning of its weights' names.
DenseExperts dense_experts(const at::Tensor& x, const plan::Experts& spec, const at::Tensor& mask_bs,
                           const auto& linear, const auto& mlp) {
  const auto logits = linear(x, std::string("router"));
  const bool softmax = spec.router.score == plan::Router::Score::Softmax;
  const auto scores = softmax ? at::softmax(logits, -1) : 1 / (1 + (-logits).exp());
  auto chosen = at::zeros_like(logits.detach());
  for (std::int64_t k = 0; k < spec.top_k; ++k) {
    const auto left = logits.detach().masked_fill(chosen > 0, -1e300);
    chosen = chosen + (left == left.amax(-1, true)).to(at::kDouble);
  }
  auto weights = scores * chosen;
  if (!spec.router.unnormalized && (softmax || spec.top_k > 1)) weights = weights / weights.sum(-1, true);
  weights = weights * spec.router.scaling;
  auto y = at::zeros_like(x);
  for (std::int64_t e = 0; e < spec.count; ++e)
    y = y + weights.narrow(-1, e, 1) * mlp("experts.local_experts." + std::to_string(e) + ".", spec.expert);
  if (spec.shared_width > 0) {
    const auto shared = mlp(std::string("shared_experts."), spec.shared());
    y = y + (spec.shared_gate ? shared / (1 + (-linear(x, std::string("shared_experts.gate"))).exp()) : shared);
  }
  const auto share = scores / scores.sum(-1, true);
  const auto balance =
      (chosen.mean(1) / static_cast<double>(spec.top_k) * share.mean(1)).sum(-1) * static_cast<double>(spec.count);
  const auto z = logits.exp().sum(-1).log().pow(2).mean(1);
  const auto tokens =
      mask_bs.defined() ? mask_bs.sum(1) : at::ones({x.size(0)}, at::kDouble) * static_cast<double>(x.size(1));
  return {y, ((balance * spec.router.aux_loss + z * spec.router.z_loss) * tokens).sum()};
}

}  // namespace megatron::testing
