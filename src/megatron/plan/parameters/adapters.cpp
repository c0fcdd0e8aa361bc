#include "megatron/plan/parameters/adapters.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

using Split = Linear::Split;

/// The gates of a gated attention's queries.
constexpr const char* kGates = "q_gate_proj";

/// Every part of every linear layer of so many layers that has an adapter, whole.
template <class Visit>
void for_each_adapter(const ModelShape& shape, std::int64_t first, std::int64_t count, const Visit& visit) {
  if (!shape.lora) return;
  for (std::int64_t number = first; number < first + count; ++number) {
    const LayerSpec layer = shape.layer(number);
    for (const Branch& branch : layer.branches)
      for (const Linear& linear : branch.linears(layer.hidden))
        for (const ProjectionSlice& part : projection_slices(layer, linear, 1))
          if (shape.lora->adapts(part.name)) visit(number, layer, linear, part);
  }
}

/// PEFT's name of a layer that is one module there, by the end of ours; "": there is none that has adapters.
std::string module_of(const Linear& linear) {
  constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"self_attention.linear_q_down_proj", "q_a_proj"},
      {"self_attention.linear_q_up_proj", "q_b_proj"},
      {"self_attention.linear_q_proj", "q_proj"},
      {"self_attention.linear_kv_down_proj", "kv_a_proj_with_mqa"},
      {"self_attention.linear_kv_up_proj", "kv_b_proj"},
      {".linear_proj", "o_proj"},
      {"cross_attention.linear_q", "q_proj"},
      {".linear_fc1", "up_proj"},
      {".linear_fc2", "down_proj"}};
  for (const auto& [ours, theirs] : kNames)
    if (linear.name.ends_with(ours)) return theirs;
  return "";
}

std::vector<ShardSlice> even(std::int64_t size, int tp, int tp_rank) {
  return {{.offset = size / tp * tp_rank, .length = size / tp}};
}

/// The rows of B that a rank has, of a part of a column-parallel layer.
std::vector<ShardSlice> rows_of(const LayerSpec& layer, const Linear& linear, const ProjectionSlice& whole, int tp,
                                int tp_rank) {
  const std::int64_t groups = linear.split == Split::Groups ? layer.attention().groups : 0;
  // Ranks that share a group have its key and value all.
  const bool divided = whole.offset == 0 || whole.name == kGates;  // between these, of a group
  if (groups == 0 || groups % tp == 0 || divided) return even(whole.outputs(), tp, tp_rank);
  const int sharing = tp / static_cast<int>(groups);
  return {{.offset = tp_rank / sharing * whole.length,
           .length = whole.length,
           .copies = sharing,
           .copy = tp_rank % sharing}};
}

}  // namespace

double Lora::scale() const {
  const double r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

bool Lora::adapts(const std::string& part) const {
  return std::ranges::any_of(targets,
                             [&](const std::string& target) { return target == "all-linear" || target == part; });
}

std::optional<Lora> lora_of(const config::LoraConfig& lora) {
  if (lora.rank <= 0) return std::nullopt;
  return Lora{.rank = lora.rank,
              .alpha = lora.alpha,
              .dropout = lora.dropout,
              .rslora = lora.rslora,
              .dora = lora.dora,
              .targets = lora.targets};
}

std::vector<ProjectionSlice> projection_slices(const LayerSpec& layer, const Linear& linear, int ranks) {
  const std::int64_t outputs = linear.outputs;
  switch (linear.split) {
    case Split::Groups: {
      const SelfAttention& attention = layer.attention();
      const std::int64_t groups = std::max<std::int64_t>(attention.groups / ranks, 1), size = attention.head_size,
                         queries = attention.query_rows() / ranks / groups,
                         gates = attention.gate_rows() / ranks / groups, all = queries + gates + 2 * size;
      std::vector<ProjectionSlice> slices{{"q_proj", groups, all, 0, queries}};
      if (gates > 0) slices.push_back({kGates, groups, all, queries, gates});
      slices.push_back({"k_proj", groups, all, queries + gates, size});
      slices.push_back({"v_proj", groups, all, queries + gates + size, size});
      return slices;
    }
    case Split::Halves: {
      const std::int64_t half = outputs / 2 / ranks;
      return {{"gate_proj", 1, 2 * half, 0, half}, {"up_proj", 1, 2 * half, half, half}};
    }
    case Split::Pairs: {
      const std::int64_t size = linear.head_size, heads = outputs / 2 / size / ranks;
      return {{"k_proj", heads, 2 * size, 0, size}, {"v_proj", heads, 2 * size, size, size}};
    }
    case Split::Outputs:
    case Split::Inputs:
    case Split::Whole:
      break;
  }
  const std::string module = module_of(linear);
  const std::int64_t own = linear.split == Split::Outputs ? outputs / ranks : outputs;
  if (module.empty()) return {};
  return {{module, 1, own, 0, own}};
}

std::string adapter_name(const LayerSpec& layer, const Linear& linear, const ProjectionSlice& part,
                         const char* matrix) {
  return concat(layer.prefix, linear.name, ".", part.name, ".lora_", matrix, ".weight");
}

std::string magnitude_name(const LayerSpec& layer, const Linear& linear, const ProjectionSlice& part) {
  return concat(layer.prefix, linear.name, ".", part.name, ".lora_magnitude_vector");
}

std::vector<ParameterSpec> adapter_parameters(const ModelShape& shape, int tp, int tp_rank,
                                              const std::vector<StageSpec>& parts, const ExpertShare& experts) {
  std::vector<ParameterSpec> specs;
  for (const StageSpec& stage : parts) {
    for_each_adapter(
        shape, stage.first_layer, stage.num_layers,
        [&](std::int64_t number, const LayerSpec& layer, const Linear& linear, const ProjectionSlice& part) {
          const bool of_expert = linear.expert >= 0;
          if (of_expert && !experts.has(linear.expert, layer.experts()->count)) return;
          const int ranks = experts.slices_of(linear, tp),
                    slice = of_expert && experts.etp > 0 ? experts.etp_rank : tp_rank;
          const bool row = linear.split == Split::Inputs, whole = linear.split == Split::Whole;
          const std::int64_t rank = shape.lora->rank;
          const auto add = [&](std::string name, std::vector<std::int64_t> full) -> ParameterSpec& {
            return specs.emplace_back(ParameterSpec{.name = std::move(name),
                                                    .shape = std::move(full),
                                                    .stage = stage.stage,
                                                    .depth = 1 + number,
                                                    .of_expert = of_expert});
          };
          ParameterSpec& a = add(adapter_name(layer, linear, part, "A"), {rank, linear.inputs});
          a.init = Init::Uniform;
          a.init_std = 1 / std::sqrt(static_cast<double>(linear.inputs));
          a.heads_partial = !row;
          if (row) {
            a.split_dim = 1;
            a.pieces = even(linear.inputs, ranks, slice);
          }
          const auto by_outputs = [&](ParameterSpec& spec) {
            spec.heads_partial = row || whole;
            if (spec.heads_partial) return;
            spec.split_dim = 0;
            spec.pieces = rows_of(layer, linear, part, ranks, slice);
          };
          by_outputs(add(adapter_name(layer, linear, part, "B"), {part.outputs(), rank}));
          if (!shape.lora->dora) return;
          ParameterSpec& magnitude = add(magnitude_name(layer, linear, part), {part.outputs()});
          magnitude.weight_decay = false;
          by_outputs(magnitude);
        });
  }
  return specs;
}

std::vector<ParameterSpec> trained_parameters(const ModelShape& shape, int tp, int tp_rank,
                                              const std::vector<StageSpec>& parts, const ExpertShare& experts) {
  return shape.lora ? adapter_parameters(shape, tp, tp_rank, parts, experts)
                    : model_parameters(shape, tp, tp_rank, parts, experts);
}

ModelShape without_adapters(ModelShape shape) {
  shape.lora.reset();
  return shape;
}

AdapterFlops adapter_flops(const ModelShape& shape, std::int64_t layer, std::int64_t tokens,
                           std::int64_t encoder_tokens) {
  AdapterFlops flops;
  if (!shape.lora) return flops;
  const bool twice = shape.lora->dora && shape.lora->dropout > 0;
  const LayerSpec spec = shape.layer(layer);
  for (const Branch& branch : spec.branches)
    for (const Linear& linear : branch.kinds(spec.hidden)) {
      const double rows = linear.share * static_cast<double>(linear.alike) *
                          static_cast<double>(linear.reads_encoder ? encoder_tokens : tokens);
      for (const ProjectionSlice& part : projection_slices(spec, linear, 1)) {
        if (!shape.lora->adapts(part.name)) continue;
        flops.own += 2 * rows * static_cast<double>(shape.lora->rank * (linear.inputs + part.outputs()));
        if (twice) flops.weights += 2 * rows * static_cast<double>(linear.inputs * part.outputs());
      }
    }
  return flops;
}

}  // namespace megatron::plan
