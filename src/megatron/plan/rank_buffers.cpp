#include "megatron/plan/rank_buffers.h"

#include <algorithm>

#include "megatron/plan/counts.h"

namespace megatron::plan {
namespace {

/// Whether some rank puts weight gradients off.
bool splits_backward(const ResolvedRun& run) {
  if (!run.schedule_file)
    return run.schedule_name == schedule::Name::ZeroBubbleH1 || run.schedule_name == schedule::Name::ZeroBubbleV;
  const auto& ranks = run.schedule_file->ranks;
  return std::any_of(ranks.begin(), ranks.end(), [](const std::vector<schedule::Op>& ops) {
    return std::any_of(ops.begin(), ops.end(),
                       [](const schedule::Op& op) { return op.kind == schedule::Kind::BackwardInput; });
  });
}

}  // namespace

BufferLayout rank_layout(const ResolvedRun& run, const std::vector<ParameterSpec>& specs) {
  const config::OptimizerConfig& optimizer = run.config.optimizer;
  const int dp = run.grid.size(Axis::Dp);
  if (!optimizer.use_distributed_optimizer) return buffer_layout(specs, bucket_elements(optimizer, dp));
  BufferPadding padding = sharded_padding(dp);
  const int last = run.placement.num_stages() - 1;
  if (run.shape.tied_output && run.placement.rank_of(0) != run.placement.rank_of(last))
    padding.alone = "embedding.word_embeddings.weight";
  return buffer_layout(specs, bucket_elements(optimizer, dp), padding);
}

int num_owners(const ResolvedRun& run) {
  return run.config.optimizer.use_distributed_optimizer ? run.grid.size(Axis::Dp) : 1;
}

std::optional<GradientPool> rank_gradient_pool(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                                               const BufferLayout& layout) {
  const config::OptimizerConfig& optimizer = run.config.optimizer;
  if (num_owners(run) == 1 || optimizer.data_parallel_sharding_strategy != "optim_grads") return std::nullopt;
  return gradient_pool(layout, specs,
                       {.split_backward = splits_backward(run), .overlap = optimizer.overlap_grad_reduce});
}

ElementBytes element_bytes_of(const config::RunConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  ElementBytes bytes;
  bytes.value = element_bytes(config);
  const bool half = bytes.value == 2;
  const std::int64_t precise = half ? 4 : bytes.value;
  bytes.gradient = half && optimizer.grad_dtype == "fp32" ? 4 : bytes.value;
  const std::int64_t moments = optimizer.name == "adam"   ? 2
                               : optimizer.name == "lion" ? 1
                                                          : (optimizer.sgd_momentum > 0 ? 1 : 0);
  bytes.optimizer = (half ? precise : 0) + moments * (optimizer.state_dtype == "bf16" ? 2 : precise);
  return bytes;
}

}  // namespace megatron::plan
