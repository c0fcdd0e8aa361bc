#include "megatron/plan/cost/checkpoint_size.h"

#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/fp8.h"

namespace megatron::plan {

std::int64_t checkpoint_bytes(const ResolvedRun& run) {
  const ElementBytes element = element_bytes_of(run.config);
  const std::int64_t weight = element.master > 0 ? element.master : element.value;
  std::int64_t bytes = 0;
  for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, {whole_model(run.shape.num_layers)})) {
    const bool over_vocabulary = spec.name == kWordEmbedding || spec.name.starts_with("output_layer.");
    const std::int64_t elements = over_vocabulary ? spec.size() / spec.shape.at(0) * run.shape.vocab : spec.size();
    bytes += elements * (weight + (spec.is_layer_matrix() ? element.matrix_state : element.state));
  }
  if (const auto fp8 = fp8_recipe(run.config.fp8); fp8 && fp8->delayed())
    bytes += (1 + fp8->history) * static_cast<std::int64_t>(fp8_layers(run.shape).size()) * kFp8Operands * 4;
  return bytes;
}

int checkpoints_in_memory(const config::CheckpointConfig& checkpoint, bool several_nodes) {
  if (checkpoint.memory_interval <= 0) return 0;
  return several_nodes && checkpoint.memory_neighbours ? 4 : 2;
}

}  // namespace megatron::plan
