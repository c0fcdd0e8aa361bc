#pragma once
#include <ATen/ops/erfinv.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "tests/testing/dense_parts.h"

// A part of DenseModel: the logits of routers.
namespace megatron::testing {

/// Standard normal numbers shaped as logits [b, s, E], by the inverse of their distribution.
inline at::Tensor normal_logits(std::uint64_t seed, const std::string& site, const at::Tensor& sample_ids,
                                const at::Tensor& logits) {
  const auto even = drawn(seed, site, sample_ids, logits[0].numel(),
                          [](std::uint32_t word) { return (static_cast<double>(word >> 8) + 0.5) / (1 << 24); });
  return (at::erfinv(2 * even - 1) * std::sqrt(2.0)).view_as(logits);
}

/// What a router makes of x [b, s, h] by `linear`, with its jitter; or logits drawn, with the gradient of those.
at::Tensor router_logits(const at::Tensor& x, const plan::Router& router, std::uint64_t seed, const std::string& layer,
                         const at::Tensor& sample_ids, bool training, const auto& linear) {
  const bool jittered = training && router.jitter > 0;
  const auto logits = linear(
      jittered ? x * jitter(seed, layer + "/mlp router", router.jitter, sample_ids, x[0].numel()).view_as(x) : x);
  if (!router.drawn) return logits;
  return normal_logits(seed, layer + "/mlp logits", sample_ids, logits) + logits - logits.detach();
}

}  // namespace megatron::testing
