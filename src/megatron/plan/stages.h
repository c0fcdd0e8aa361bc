#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/cost/balance.h"
#include "megatron/schedule/placement.h"

// Layers to pipeline stages.
namespace megatron::plan {

/// What one pipeline stage has of the model. Stages are numbered in model order, from the embedding to the loss.
struct StageSpec {
  std::int64_t first_layer = 0, num_layers = 0;
  bool embedding = true;  ///< word and position embedding
  bool output = true;     ///< final norm, output layer, loss
  int stage = 0;

  bool operator==(const StageSpec&) const = default;
};

/// The part that is the whole model.
inline StageSpec whole_model(std::int64_t num_layers) { return {.first_layer = 0, .num_layers = num_layers}; }

/// Consecutive stages of so many layers each, the embedding on the first and the output on the last.
std::vector<StageSpec> parts_of_layers(const std::vector<std::int64_t>& layers);

/// Those of `parts` (every stage of the model, in order) that pipeline rank `pp_rank` holds.
std::vector<StageSpec> parts_of_rank(const std::vector<StageSpec>& parts, const schedule::Placement& placement,
                                     int pp_rank);

/// Layers [first, last) of a stage that go through autograd together, counted from the stage's first.
struct LayerGroup {
  std::int64_t first = 0, last = 0;
  bool again = false;  ///< computed again in the backward pass
};

/// Whether a layout may have stages without anything: a run here may not, one of Megatron-LM may.
enum class EmptyStages : std::uint8_t { Refused, Allowed };

/// Stages of a layout as Megatron-LM writes it: E embedding, t transformer layer, L output and loss, '|' between
/// stages; x*n and (…)*n repeat a letter or a group, commas and spaces have no effect. "Et*3|(tt|)*2tL" has four stages
/// of 3, 2, 2 and 1 layers. Throws ConfigError that shows the place of the error.
std::vector<StageSpec> parse_layout(const std::string& layout, EmptyStages empty = EmptyStages::Refused);

/// The text that parse_layout() reads as these stages, which have their layers in order.
std::string text_of_stages(const std::vector<StageSpec>& parts);

/// Takes out of `parallel` all that says which layers a stage has, but for pp and vpp: stages are equal then.
void reset_stages(config::ParallelConfig& parallel);

/// Every stage of the model, as parallel.pp, vpp, pp_layout and the related options say. `costs` are for pp_layout
/// "balanced" (balance.h). Throws ConfigError.
std::vector<StageSpec> stage_parts(const config::ParallelConfig& parallel, std::int64_t num_layers,
                                   const SplitCosts& costs);

/// The stages of a T5 cut at `parallel.pipeline_split_rank`, one a rank: those before it share the encoder's layers,
/// the others the decoder's, which are numbered after them: evenly, or with pp_layout "balanced" each stack by `costs`.
/// Throws ConfigError.
std::vector<StageSpec> split_stage_parts(const config::ParallelConfig& parallel, std::int64_t encoder_layers,
                                         std::int64_t decoder_layers, const SplitCosts& costs);

}  // namespace megatron::plan
