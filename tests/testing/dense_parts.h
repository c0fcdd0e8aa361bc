#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/activation.h"
#include "megatron/plan/layer.h"

// Parts of DenseModel: activations, random numbers, losses of two classes, mixtures of experts.

namespace megatron::testing {

inline at::Tensor activated(const at::Tensor& x, kernels::Activation form) {
  using kernels::Activation;
  switch (form.kind) {
    case Activation::GeluErf:
      return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
    case Activation::Silu:
      return x / (1 + (-x).exp());
    case Activation::Relu:
      return x.clamp_min(0);
    case Activation::SquaredRelu:
      return x.clamp_min(0) * x.clamp_min(0);
    case Activation::QuickGelu:
      return x / (1 + (x * -1.702).exp());
    case Activation::GeluTanh:
      break;
  }
  return x * 0.5 * (1 + at::tanh(std::sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x)));
}

/// Of a gated unit of `width` gates, then as many values: what `form` says of both too.
inline at::Tensor gated(const at::Tensor& u, std::int64_t width, kernels::Activation form) {
  at::Tensor gate = u.narrow(-1, 0, width), value = u.narrow(-1, width, width);
  if (form.clamp > 0) {
    gate = gate.clamp_max(form.clamp);
    value = value.clamp(-form.clamp, form.clamp);
  }
  return activated(gate, form) * (value + form.offset);
}

/// [query, key] of s each: whether the query does not see the key. It sees those before it, `both_ways` all, and none
/// that is `window` or more away; 0: any.
inline at::Tensor unseen(std::int64_t s, std::int64_t window, bool both_ways) {
  const auto ahead = at::arange(s).unsqueeze(0) - at::arange(s).unsqueeze(1), none = ahead > s;
  const auto late = both_ways ? none : ahead > 0;
  return window > 0 ? late.logical_or(ahead.abs() >= window) : late;
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

/// [b, n]: of `n` elements of a site, number(word) of each, drawn one by one.
at::Tensor drawn(std::uint64_t seed, const std::string& site, const at::Tensor& sample_ids, std::int64_t n,
                 const auto& number) {
  const auto key = stream_key(seed, "dropout/" + site);
  auto out = at::zeros({sample_ids.size(0), n}, at::kDouble);
  for (std::int64_t k = 0; k < out.size(0); ++k) {
    const auto sample = static_cast<std::uint64_t>(sample_ids[k].item<std::int64_t>());
    for (std::int64_t i = 0; i < n; ++i)
      out.data_ptr<double>()[k * n + i] = number(random_word(key, sample, static_cast<std::uint64_t>(i)));
  }
  return out;
}

/// Numbers from 1 - eps to 1 + eps [b, n], made of 24 bits of each element's word.
inline at::Tensor jitter(std::uint64_t seed, const std::string& site, double eps, const at::Tensor& sample_ids,
                         std::int64_t n) {
  return drawn(seed, site, sample_ids, n, [eps](std::uint32_t word) {
    return 1 - eps + 2 * eps * (static_cast<double>(word >> 8) + 0.5) / (1 << 24);
  });
}

/// What gated attention multiplies by [b, s, n * d], of linear_qkv [b, s, …]: behind the queries of each group its
/// gates.
inline at::Tensor gates_of(const at::Tensor& qkv, const plan::SelfAttention& spec) {
  const std::int64_t queries = spec.heads / spec.groups * spec.head_size;
  return at::sigmoid(qkv.unflatten(-1, {spec.groups, -1}).narrow(-1, queries, queries)).flatten(-2);
}

struct DenseExperts {
  at::Tensor y;     ///< [b, s, h]
  at::Tensor loss;  ///< the auxiliary losses of every sequence, times its tokens that count
};

/// Where the greatest `count` of `values` are, of equal ones the first.
inline std::vector<std::size_t> places_of_greatest(const std::vector<double>& values, std::int64_t count) {
  std::vector<std::size_t> places;
  while (std::ssize(places) < count) {
    std::size_t best = values.size();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::ranges::find(places, i) == places.end() && (best == values.size() || values[i] > values[best])) best = i;
    places.push_back(best);
  }
  return places;
}

/// The experts of a token, chosen by `values` of each; with groups, of the groups whose best have the greatest sum.
inline std::vector<std::size_t> experts_of_token(const std::vector<double>& values, const plan::Experts& spec) {
  const auto groups = static_cast<std::size_t>(spec.router.groups);
  if (groups == 1) return places_of_greatest(values, spec.top_k);
  const std::size_t size = values.size() / groups;
  const std::int64_t best = spec.router.group_best, counted = best > 0 ? best : spec.top_k / spec.router.group_top_k;
  std::vector<double> sums;
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<double> own(values.begin() + static_cast<std::ptrdiff_t>(g * size),
                            values.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    sums.push_back(0);
    for (const std::size_t e : places_of_greatest(own, counted)) sums.back() += own[e];
  }
  std::vector<double> allowed(values.size(), -1e300);
  for (const std::size_t g : places_of_greatest(sums, spec.router.group_top_k))
    for (std::size_t e = g * size; e < (g + 1) * size; ++e) allowed[e] = values[e];
  return places_of_greatest(allowed, spec.top_k);
}

inline std::vector<double> numbers_of(const at::Tensor& row) {
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < row.size(0); ++i) numbers.push_back(row[i].item<double>());
  return numbers;
}

/// What is left of `chosen` [b, s, E] where an expert takes ceil(s * top_k / E * factor) tokens of a sequence: those
/// with the greatest `weights`, or the first.
inline at::Tensor within_capacity(const at::Tensor& chosen, const at::Tensor& weights, const plan::Experts& spec) {
  auto kept = at::zeros_like(chosen);
  const auto even = static_cast<double>(chosen.size(1) * spec.top_k) / static_cast<double>(spec.count);
  const auto most = static_cast<std::int64_t>(std::ceil(even * spec.capacity_factor));
  for (std::int64_t k = 0; k < chosen.size(0); ++k)
    for (std::int64_t e = 0; e < spec.count; ++e) {
      const auto column = chosen[k].select(1, e);
      auto order = numbers_of(spec.drop == plan::Experts::Drop::Least ? weights[k].select(1, e) + column : column);
      const auto tokens = std::min(most, static_cast<std::int64_t>(column.sum().item<double>()));
      for (const std::size_t token : places_of_greatest(order, tokens))
        kept[k][static_cast<std::int64_t>(token)][e] = 1;
    }
  return kept;
}

/// A mixture of experts on x [b, s, h]: every expert on every token, of which those count that the token goes to.
/// `linear`: of x by the name of its weight; `mlp`: of x by the beginning of its weights' names. `bias`: the router's,
/// or undefined.
DenseExperts dense_experts(const at::Tensor& x, const plan::Experts& spec, const at::Tensor& mask_bs,
                           const at::Tensor& bias, bool training, const auto& linear, const auto& mlp) {
  const auto logits = linear(x, std::string("router"));
  const bool softmax = spec.router.score == plan::Router::Score::Softmax;
  const auto scores = softmax ? at::softmax(logits, -1) : 1 / (1 + (-logits).exp());
  const bool by_logits = spec.router.groups == 1 ? !bias.defined() : softmax && !spec.router.unnormalized;
  auto by = (by_logits ? logits : scores).detach();
  if (bias.defined()) by = by + bias.detach();
  auto chosen = at::zeros_like(logits.detach()), best = at::zeros_like(chosen);
  for (std::int64_t k = 0; k < x.size(0); ++k)
    for (std::int64_t i = 0; i < x.size(1); ++i) {
      for (const std::size_t e : experts_of_token(numbers_of(by[k][i]), spec))
        chosen[k][i][static_cast<std::int64_t>(e)] = 1;
      for (const std::size_t e : places_of_greatest(numbers_of(logits[k][i]), spec.top_k))
        best[k][i][static_cast<std::int64_t>(e)] = 1;
    }
  auto weights = scores * chosen;
  if (!spec.router.unnormalized && (softmax || spec.top_k > 1)) weights = weights / weights.sum(-1, true);
  weights = weights * spec.router.scaling;
  if (spec.capacity_factor > 0 && training) weights = weights * within_capacity(chosen, weights.detach(), spec);
  auto y = at::zeros_like(x);
  for (std::int64_t e = 0; e < spec.count; ++e)
    y = y + weights.narrow(-1, e, 1) * mlp("experts.local_experts." + std::to_string(e) + ".", spec.expert);
  if (spec.shared_width > 0) {
    const auto shared = mlp(std::string("shared_experts."), spec.shared());
    y = y + (spec.shared_gate ? shared / (1 + (-linear(x, std::string("shared_experts.gate"))).exp()) : shared);
  }
  if (bias.defined()) y = y + 0 * bias.sum();  // its gradient is zero
  const auto share = scores / scores.sum(-1, true);
  const auto balance =
      (best.mean(1) / static_cast<double>(spec.top_k) * share.mean(1)).sum(-1) * static_cast<double>(spec.count);
  const auto z = logits.exp().sum(-1).log().pow(2).mean(1);
  const auto tokens =
      mask_bs.defined() ? mask_bs.sum(1) : at::ones({x.size(0)}, at::kDouble) * static_cast<double>(x.size(1));
  return {y, ((balance * spec.router.aux_loss + z * spec.router.z_loss) * tokens).sum()};
}

/// The keys that pad each of b sequences, [b, 1, 1, keys]; undefined lengths [b]: none.
inline at::Tensor padding_keys(std::int64_t b, std::int64_t keys, const at::Tensor& lengths_b) {
  return lengths_b.defined() ? at::arange(keys).ge(lengths_b.view({b, 1, 1, 1}))
                             : at::zeros({b, 1, 1, keys}, at::kBool);
}

/// What each query does not see of a layer's own keys, [b, 1, query, key]. `window` 0: none.
inline at::Tensor hidden_keys(std::int64_t b, std::int64_t s, bool both_ways, std::int64_t window,
                              const at::Tensor& lengths_b, const at::Tensor& first_key_bs) {
  auto hidden = unseen(s, window, both_ways).expand({b, 1, s, s});
  if (first_key_bs.defined()) hidden = hidden.logical_or(at::arange(s).lt(first_key_bs.unsqueeze(-1)).unsqueeze(1));
  return hidden.logical_or(padding_keys(b, s, lengths_b));
}

/// Queries, keys and values of one width each, [b, n, s, features].
struct DenseHeads {
  at::Tensor q, k, v;
};

/// Those of latent attention (DeepSeek-AI 2024, equations 9 to 19), of the normed stream x [b, s, h]; linear(x, name)
/// and norm(x, name) are the layer's, rotated([b, n, s, rope]) turns all of its features.
inline DenseHeads dense_latents(const at::Tensor& x, const plan::Latents& latents, std::int64_t n, const auto& linear,
                                const auto& norm, const auto& rotated) {
  const std::int64_t b = x.size(0), s = x.size(1);
  const auto by_head = [&](const at::Tensor& all) { return all.view({b, s, n, -1}).transpose(1, 2); };
  const auto q =
      by_head(latents.q_rank > 0 ? linear(norm(linear(x, "linear_q_down_proj"), "q_layernorm"), "linear_q_up_proj")
                                 : linear(x, "linear_q_proj"));
  const auto down = linear(x, "linear_kv_down_proj");
  const auto up = by_head(linear(norm(down.narrow(-1, 0, latents.kv_rank), "kv_layernorm"), "linear_kv_up_proj"));
  const auto key = rotated(down.narrow(-1, latents.kv_rank, latents.rope).unsqueeze(1));
  return {at::cat({q.narrow(-1, 0, latents.nope), rotated(q.narrow(-1, latents.nope, latents.rope))}, -1),
          at::cat({up.narrow(-1, 0, latents.nope), key.expand({b, n, s, latents.rope})}, -1),
          up.narrow(-1, latents.nope, latents.value)};
}

}  // namespace megatron::testing
