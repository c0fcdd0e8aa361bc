#include "megatron/plan/counts.h"

#include <algorithm>

namespace megatron::plan {

std::int64_t parameter_count(const GptShape& shape) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : gpt_parameters(shape, 1, 0)) count += spec.size();
  return count;
}

double training_flops(const GptShape& shape, std::int64_t sequences, std::int64_t seq_length) {
  const auto h = static_cast<double>(shape.hidden), layers = static_cast<double>(shape.num_layers);
  const auto ffn = static_cast<double>(shape.ffn_hidden), vocab = static_cast<double>(shape.padded_vocab);
  const auto length = static_cast<double>(seq_length);
  const double tokens = static_cast<double>(sequences) * length;
  const double matrices = layers * (h * 3 * h + h * h + 2 * h * ffn) + h * vocab;
  return 6 * tokens * matrices + 6 * tokens * length * h * layers;
}

std::int64_t element_bytes(const config::RunConfig& config) { return config.train.dtype == "fp64" ? 8 : 4; }

std::int64_t bucket_elements(const config::OptimizerConfig& optimizer, int dp) {
  if (!optimizer.overlap_grad_reduce) return 0;
  if (optimizer.bucket_size > 0) return optimizer.bucket_size;
  return std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * dp);
}

MemoryPlan memory_plan(const config::RunConfig& config, const GptShape& shape, int tp_rank) {
  const int tp = config.parallel.tp;
  const std::int64_t element = element_bytes(config);
  MemoryPlan memory;
  std::int64_t elements = 0;
  for (const ParameterSpec& spec : gpt_parameters(shape, tp, tp_rank)) elements += spec.local_size();
  memory.parameters = memory.gradients = elements * element;
  memory.optimizer_state = 2 * elements * element;

  const std::int64_t tokens = config.train.micro_batch_size * config.data.seq_length;
  const std::int64_t h = shape.hidden;
  // Per token and layer: input and normalized input of both halves are whole on every rank; q, k, v, the attention's
  // output and the MLP's inner activation are this rank's share.
  const std::int64_t inner = (config.train.recompute_gelu ? 1 : 2) * shape.ffn_hidden;
  const std::int64_t per_layer = 4 * h + (4 * h + inner) / tp;
  const std::int64_t around_layers = 2 * h;  // the final norm's input and output
  memory.activations = tokens * (shape.num_layers * per_layer + around_layers) * element;
  memory.logits = std::min(config.train.loss_chunk_tokens, tokens) * (shape.padded_vocab / tp) * element;
  return memory;
}

}  // namespace megatron::plan
