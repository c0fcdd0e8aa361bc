#include "megatron/model/experts/expert_adapters.h"

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"

namespace megatron::model {
namespace {

using Offsets = std::vector<std::int64_t>;
using parallel::ParameterPtr;

kernels::Groups low_rank_groups(const std::vector<ParameterPtr>& matrices, const Offsets& offsets) {
  kernels::Groups groups{.weights = {}, .offsets = offsets};
  for (const ParameterPtr& matrix : matrices) groups.weights.push_back(matrix->arrived().detach());
  return groups;
}

/// The columns of a part: a view.
at::Tensor part_of(const at::Tensor& y, const plan::ProjectionSlice& part) {
  return y.narrow(1, part.offset, part.length);
}

}  // namespace

void write_grouped_gradients(const std::vector<ParameterPtr>& weights, const at::Tensor& dy, const at::Tensor& x,
                             const Offsets& offsets) {
  std::vector<parallel::Contribution> contributions(weights.begin(), weights.end());
  kernels::Groups into{.weights = {}, .offsets = offsets};
  std::vector<double> betas;
  for (const parallel::Contribution& contribution : contributions) {
    into.weights.push_back(contribution.target());
    betas.push_back(contribution.beta());
  }
  kernels::grouped_weight_gradient(into, dy, x, betas);
  for (parallel::Contribution& contribution : contributions) contribution.written();
}

ExpertAdaptersPtr ExpertAdapters::of(const parallel::ParameterStore& parameters, const plan::LayerSpec& layer,
                                     const std::vector<plan::Linear>& linears, const plan::Lora& lora,
                                     std::uint64_t seed, int slices, int slice) {
  const plan::Linear& first = linears.front();
  std::vector<Part> parts;
  for (const plan::ProjectionSlice& outputs : plan::projection_slices(layer, first, slices)) {
    if (!lora.adapts(outputs.name)) continue;
    // Of all experts one stream: which of them a row is of is in its number.
    const char* const whose = first.expert >= 0 ? "experts." : "shared_experts.";
    Part part{.outputs = outputs,
              .a = {},
              .b = {},
              .dropout_key = stream_key(seed, concat("dropout/", layer.prefix, "mlp.", whose, outputs.name))};
    for (const plan::Linear& linear : linears) {
      part.a.push_back(parameters.get(plan::adapter_name(layer, linear, outputs, "A")));
      part.b.push_back(parameters.get(plan::adapter_name(layer, linear, outputs, "B")));
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return nullptr;
  const bool row = first.split == plan::Linear::Split::Inputs;
  return std::make_shared<const ExpertAdapters>(std::move(parts),
                                                Options{.scale = lora.scale(),
                                                        .dropout = lora.dropout,
                                                        .features = first.inputs,
                                                        .first_feature = row ? first.inputs / slices * slice : 0});
}

at::Tensor ExpertAdapters::dropped(const Part& part, const at::Tensor& x, const at::Tensor& ids) const {
  if (!ids.defined() || x.size(0) == 0) return x;
  const kernels::Dropout dropout{.p = options_.dropout,
                                 .key = part.dropout_key,
                                 .sample_ids = ids,
                                 .features = options_.features,
                                 .feature_offset = options_.first_feature};
  return kernels::dropout_backward(x.unsqueeze(0), dropout).squeeze(0);  // the mask times x, as times a gradient
}

void ExpertAdapters::add_to(const at::Tensor& y, const at::Tensor& x, const Offsets& offsets,
                            const at::Tensor& ids) const {
  for (const Part& part : parts_) {
    const at::Tensor z = kernels::grouped_linear(dropped(part, x, ids), low_rank_groups(part.a, offsets));
    part_of(y, part.outputs).add_(kernels::grouped_linear(z, low_rank_groups(part.b, offsets)), options_.scale);
  }
}

void ExpertAdapters::add_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Offsets& offsets,
                                        const at::Tensor& ids) const {
  for (const Part& part : parts_) {
    const at::Tensor dz =
        kernels::grouped_input_gradient(part_of(dy, part.outputs).contiguous(), low_rank_groups(part.b, offsets));
    dx.add_(dropped(part, kernels::grouped_input_gradient(dz, low_rank_groups(part.a, offsets)), ids), options_.scale);
  }
}

void ExpertAdapters::write_gradients(const at::Tensor& dy, const at::Tensor& x, const Offsets& offsets,
                                     const at::Tensor& ids) const {
  for (const Part& part : parts_) {
    const at::Tensor dpart = part_of(dy, part.outputs).contiguous(), in = dropped(part, x, ids),
                     z = kernels::grouped_linear(in, low_rank_groups(part.a, offsets)).mul_(options_.scale),
                     dz = kernels::grouped_input_gradient(dpart, low_rank_groups(part.b, offsets)).mul_(options_.scale);
    write_grouped_gradients(part.b, dpart, z, offsets);
    write_grouped_gradients(part.a, dz, in, offsets);
  }
}

void ExpertAdapters::append_values(std::vector<at::Tensor>& inputs) const {
  for (const Part& part : parts_)
    for (const auto* matrices : {&part.a, &part.b})
      for (const ParameterPtr& matrix : *matrices) inputs.push_back(matrix->value);
}

}  // namespace megatron::model
