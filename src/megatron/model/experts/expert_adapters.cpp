#include "megatron/model/experts/expert_adapters.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/low_rank/low_rank.h"
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

ExpertAdaptersPtr ExpertAdapters::of(const FindParameter& find, const plan::LayerSpec& layer,
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
      part.a.push_back(find(plan::adapter_name(layer, linear, outputs, "A")));
      part.b.push_back(find(plan::adapter_name(layer, linear, outputs, "B")));
    }
    const auto missing = std::ranges::count(part.a, nullptr), missing_b = std::ranges::count(part.b, nullptr);
    if (missing == std::ssize(part.a)) continue;
    if (lora.dora) throw std::logic_error("experts have no magnitudes");
    if (missing + missing_b > 0)
      throw std::runtime_error(concat("adapters of ", layer.prefix, "mlp.", whose, outputs.name,
                                      ": an expert has none, or an A and not the rest of it"));
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

std::vector<std::shared_ptr<const kernels::LowRank>> ExpertAdapters::for_few_rows() const {
  std::vector<std::shared_ptr<const kernels::LowRank>> all;
  for (std::size_t e = 0; e < parts_.front().a.size(); ++e) {
    std::vector<kernels::LowRank::Part> parts;
    for (const Part& part : parts_) {
      if (!kernels::takes_low_rank(part.a[e]->value)) return {};
      parts.push_back({.a = part.a[e]->arrived().detach(),
                       .b = part.b[e]->arrived().detach(),
                       .factor = {},
                       .groups = 1,
                       .group_outputs = part.outputs.group_outputs,
                       .offset = part.outputs.offset,
                       .length = part.outputs.length});
    }
    all.push_back(std::make_shared<const kernels::LowRank>(parts, options_.scale));
  }
  return all;
}

void ExpertAdapters::append_values(std::vector<at::Tensor>& inputs) const {
  for (const Part& part : parts_)
    for (const auto* matrices : {&part.a, &part.b})
      for (const ParameterPtr& matrix : *matrices) inputs.push_back(matrix->value);
}

KeptExpertAdapters::KeptExpertAdapters(std::vector<ExpertAdaptersPtr> adapters) {
  for (ExpertAdaptersPtr& adapter : adapters) {
    auto few = adapter ? adapter->for_few_rows() : std::vector<std::shared_ptr<const kernels::LowRank>>();
    adapters_.push_back({std::move(adapter), std::move(few)});
  }
}

bool KeptExpertAdapters::chosen(const RowAdapters& rows) const {
  return std::ranges::any_of(rows.numbers, [&](std::int64_t number) {
    return number > 0 && adapters_.at(static_cast<std::size_t>(number - 1)).adapter != nullptr;
  });
}

bool KeptExpertAdapters::takes(const at::Tensor& y) const {
  return std::ranges::all_of(
      adapters_, [&](const One& one) { return !one.adapter || (!one.few.empty() && one.few.front()->takes(y)); });
}

void KeptExpertAdapters::add_to(const at::Tensor& y, const at::Tensor& x, const Offsets& offsets,
                                const RowAdapters& rows) const {
  const bool few = rows.few && takes(y);
  std::vector<Offsets> lists;  // rows of an adapter and an expert
  std::vector<const kernels::LowRank*> matrices;
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    const auto& [adapter, of_few] = adapters_[i];
    if (!adapter) continue;
    Offsets own, own_offsets{0};
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      const std::size_t before = own.size();
      for (std::int64_t row = offsets[e]; row < offsets[e + 1]; ++row)
        if (rows.numbers[static_cast<std::size_t>(row)] == static_cast<std::int64_t>(i) + 1) own.push_back(row);
      own_offsets.push_back(std::ssize(own));
      if (!few || own.size() == before) continue;
      lists.emplace_back(own.begin() + static_cast<std::ptrdiff_t>(before), own.end());
      matrices.push_back(of_few[e].get());
    }
    if (few || own.empty()) continue;
    if (std::ssize(own) == y.size(0)) {
      adapter->add_to(y, x, offsets, {});
      continue;
    }
    const at::Tensor index = at::tensor(own, at::kLong).to(y.device()), changed = y.index_select(0, index);
    adapter->add_to(changed, x.index_select(0, index), own_offsets, {});
    y.index_copy_(0, index, changed);
  }
  if (lists.empty()) return;
  std::vector<kernels::LowRankRows> groups;
  for (std::size_t i = 0; i < lists.size(); ++i) groups.push_back({matrices[i], lists[i]});
  at::Tensor scratch;
  kernels::add_low_rank(y, x, groups, scratch);
}

}  // namespace megatron::model
