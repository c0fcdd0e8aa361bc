#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/tuning_config.h"
#include "megatron/plan/layer.h"
#include "megatron/plan/parameters/parameters.h"

// Low-rank adapters (Hu et al. 2021) as parameters: of each part of a linear layer that PEFT knows as a layer of its
// own a matrix A [rank, inputs] and a matrix B [outputs of the part, rank]. The part's output is W x + scale B A x.
// With lora.dora (Liu et al. 2024) it has a magnitude m [outputs of the part] too, and its output is that of the matrix
// diag(m / |V|) V, where V = W + scale B A and |V| has the norms of its rows.
namespace megatron::plan {

/// A part of a linear layer: of its outputs, seen as [groups, group_outputs], those from `offset` on, `length` of each
/// group. The part's own outputs are these, group after group: rows of PEFT's matrix in their order.
struct ProjectionSlice {
  std::string name;  ///< PEFT's: "q_proj"
  std::int64_t groups = 1, group_outputs = 0, offset = 0, length = 0;

  std::int64_t outputs() const { return groups * length; }
};

/// The parts of `linear` on each of the `ranks` that split it (ExpertShare::slices_of()): queries, keys and values;
/// gate and up; or the layer itself. Empty for layers that have no adapters: routers, and what weighs shared
/// experts.
std::vector<ProjectionSlice> projection_slices(const LayerSpec& layer, const Linear& linear, int ranks);

/// What `part` of the layer `linear` calls its matrices:
/// "decoder.layers.0.self_attention.linear_qkv.q_proj.lora_A.weight".
std::string adapter_name(const LayerSpec& layer, const Linear& linear, const ProjectionSlice& part, const char* matrix);

/// What `part` calls its magnitude, with lora.dora: "….linear_qkv.q_proj.lora_magnitude_vector".
std::string magnitude_name(const LayerSpec& layer, const Linear& linear, const ProjectionSlice& part);

/// The adapters that options describe; nothing with lora.rank 0.
std::optional<Lora> lora_of(const config::LoraConfig& lora);

/// The parameters of the adapters that one rank holds, in forward order; arguments as those of model_parameters(). A is
/// drawn evenly from -1/sqrt(inputs) to 1/sqrt(inputs), as torch.nn.Linear draws a weight and PEFT an A; B is zero. Of
/// column-parallel layers B is split as the layer and A is whole; of row-parallel ones A is split and B is whole; of
/// layers that every rank has whole (those that make latents) both are. What is whole gets a part of its gradient on
/// each rank (ParameterSpec::heads_partial). Each expert has adapters of its own, split as it is
/// (ParameterSpec::of_expert). A magnitude is held as the rows of B are, and is no parameter that decays; it is zero
/// until the weights are there whose norms it begins as (train/resume/magnitudes.h).
std::vector<ParameterSpec> adapter_parameters(const ModelShape& shape, int tp, int tp_rank,
                                              const std::vector<StageSpec>& parts, const ExpertShare& experts = {});

/// What one rank trains: the adapters, where the model has some, else all of model_parameters().
std::vector<ParameterSpec> trained_parameters(const ModelShape& shape, int tp, int tp_rank,
                                              const std::vector<StageSpec>& parts, const ExpertShare& experts = {});

/// The model without its adapters: the weights that they belong to.
ModelShape without_adapters(ModelShape shape);

/// Floating-point operations in a layer's forward pass.
struct AdapterFlops {
  double own = 0;  ///< of the adapters' products; norms of rows, one product of A and B per microbatch, are not counted
  /// Of the weights with what dropout leaves of their inputs, besides their products with the inputs themselves: with
  /// lora.dora and lora.dropout both are part of an output. Else 0.
  double weights = 0;
};
/// Of layer number `layer` over so many tokens, of which cross attention reads `encoder_tokens` (0: there is none).
AdapterFlops adapter_flops(const ModelShape& shape, std::int64_t layer, std::int64_t tokens,
                           std::int64_t encoder_tokens);

}  // namespace megatron::plan
