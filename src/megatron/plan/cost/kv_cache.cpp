#include "megatron/plan/cost/kv_cache.h"

#include <algorithm>

#include "megatron/plan/cost/counts.h"

namespace megatron::plan {
namespace {

/// Bytes of a block on all ranks that hold the model together.
std::int64_t block_bytes_of(const ResolvedRun& run) {
  const int tp = run.config.parallel.tp;
  std::int64_t token = 0;
  for (const StageSpec& part : run.parts)
    token += tp * cache_token_bytes(run.shape, part, tp, element_bytes(run.config));
  return token * kCacheBlockTokens;
}

}  // namespace

CacheWidths cache_widths(const SelfAttention& attention, int tp) {
  if (attention.latents) return {.heads = 1, .key = attention.latents->cached(), .value = 0};
  return {.heads = std::max<std::int64_t>(attention.groups / tp, 1),
          .key = attention.head_size,
          .value = attention.head_size};
}

std::int64_t cache_token_bytes(const ModelShape& shape, const StageSpec& part, int tp, std::int64_t element) {
  std::int64_t numbers = 0;
  for (std::int64_t i = 0; i < part.num_layers; ++i)
    numbers += cache_widths(shape.layer(part.first_layer + i).attention(), tp).numbers();
  return numbers * element;
}

CachePool cache_pool_of_tokens(const ResolvedRun& run, std::int64_t tokens) {
  const std::int64_t blocks = (tokens + kCacheBlockTokens - 1) / kCacheBlockTokens;
  return {.blocks = blocks, .bytes = blocks * block_bytes_of(run)};
}

CachePool cache_pool_of_bytes(const ResolvedRun& run, std::int64_t bytes) {
  const std::int64_t block = block_bytes_of(run), blocks = bytes / block;
  return {.blocks = blocks, .bytes = blocks * block};
}

}  // namespace megatron::plan
