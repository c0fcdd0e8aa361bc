#pragma once
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/block.h"
#include "megatron/plan/parameters/adapters.h"
#include "tests/testing/tensors.h"

// Low-rank adapters beside the weights of a model, and the weights that merging makes of both.
namespace megatron::testing {

/// Adapters and their matrices, whole.
struct WholeAdapter {
  plan::Lora lora;
  Tensors matrices;
};

/// The model with adapters among its parameters.
inline plan::ModelShape adapted(plan::ModelShape shape, const plan::Lora& lora) {
  shape.lora = lora;
  return shape;
}

/// Adapters of the whole model, whose B is not zero.
inline WholeAdapter random_adapter(const plan::ModelShape& shape, std::uint64_t seed, const plan::Lora& lora) {
  WholeAdapter adapter{lora, {}};
  auto generator = at::detail::createCPUGenerator(seed);
  for (const auto& spec : plan::adapter_parameters(adapted(shape, lora), 1, 0, {plan::whole_model(shape.num_layers)})) {
    const at::Tensor value = at::randn(spec.shape, generator, at::kDouble);
    if (lora.dora && spec.name.find("experts.") != std::string::npos) continue;  // which keep none
    adapter.matrices[spec.name] = spec.shape.size() == 1 ? value.abs().add(0.5) : value.mul(0.2);
  }
  return adapter;
}

/// The weights that the adapter makes of `weights`.
inline Tensors merged(const plan::ModelShape& shape, const Tensors& weights, const WholeAdapter& adapter) {
  Tensors sums;
  for (const auto& [name, weight] : weights) sums[name] = weight.detach().clone();
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const plan::Branch& branch : layer.branches)
      for (const plan::Linear& linear : branch.linears(layer.hidden))
        for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, 1)) {
          if (!adapter.matrices.contains(plan::adapter_name(layer, linear, part, "A"))) continue;
          const auto matrix = [&](const char* which) {
            return adapter.matrices.at(plan::adapter_name(layer, linear, part, which));
          };
          const at::Tensor rows = sums.at(layer.prefix + linear.name + ".weight")
                                      .view({part.groups, part.group_outputs, linear.inputs})
                                      .narrow(1, part.offset, part.length);
          rows.add_(at::matmul(matrix("B"), matrix("A")).view({part.groups, part.length, linear.inputs}),
                    adapter.lora.scale());
          if (!adapter.lora.dora) continue;
          const at::Tensor m = adapter.matrices.at(plan::magnitude_name(layer, linear, part));
          rows.mul_(m.view({part.groups, part.length, 1}).div(rows.square().sum(2, /*keepdim=*/true).sqrt()));
        }
  }
  return sums;
}

/// A rank's part of adapters.
inline std::shared_ptr<model::StageAdapters> kept(const plan::ModelShape& shape, const plan::StageSpec& part,
                                                  const comm::Group& tp, const std::vector<WholeAdapter>& adapters,
                                                  at::ScalarType dtype, const plan::ExpertShare& share = {}) {
  auto all = std::make_shared<model::StageAdapters>();
  for (const WholeAdapter& adapter : adapters) {
    model::StageAdapters::One& one = all->all.emplace_back();
    one.lora = adapter.lora;
    for (const auto& spec :
         plan::adapter_parameters(adapted(shape, adapter.lora), tp.size(), tp.rank(), {part}, share)) {
      if (!adapter.matrices.contains(spec.name)) continue;
      auto matrix = std::make_shared<parallel::Parameter>();
      matrix->spec = spec;
      matrix->value = slice_of(adapter.matrices.at(spec.name), spec).to(dtype).contiguous();
      one.matrices[spec.name] = matrix;
    }
  }
  return all;
}

}  // namespace megatron::testing
