#pragma once
#include <ATen/ops/randn.h>

#include <utility>
#include <vector>

#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/parameters/parameters.h"
#include "tests/testing/tensors.h"

namespace megatron::testing {

/// A store for rank k of t of the whole model or of one rank's `parts` of it, its values replaced by slices of
/// `weights` where that names them. `experts`: those that it holds.
inline parallel::ParameterStore make_store(const plan::ModelShape& shape, int t, int k, const Tensors& weights = {},
                                           at::ScalarType dtype = at::kDouble, std::uint64_t seed = 1234,
                                           at::Device device = at::kCPU, std::vector<plan::StageSpec> parts = {},
                                           const plan::ExpertShare& experts = {}) {
  if (parts.empty()) parts = {plan::whole_model(shape.num_layers)};
  const auto specs = plan::model_parameters(shape, t, k, parts, experts);
  parallel::ParameterStore store(specs, plan::buffer_layout(specs, 0), dtype, device, seed);
  for (const auto& parameter : store.all()) {
    const auto found = weights.find(parameter->spec.name);
    if (found == weights.end()) continue;
    parameter->value.detach().copy_(slice_of(found->second.detach(), parameter->spec));
  }
  return store;
}

/// Random full weights of every parameter, biases and norms included, as leaves.
inline Tensors random_weights(const plan::ModelShape& shape, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  Tensors weights;
  for (const auto& spec : plan::model_parameters(shape, 1, 0)) {
    auto value = at::randn(spec.shape, generator, at::kDouble) * 0.3;
    if (spec.init == plan::Init::One) value = value + 1;
    weights[spec.name] = value.requires_grad_(true);
  }
  return weights;
}

}  // namespace megatron::testing
