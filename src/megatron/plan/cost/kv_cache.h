#pragma once
#include <cstdint>

#include "megatron/plan/layer.h"
#include "megatron/plan/rules.h"

// Keys and values that decoding keeps of the tokens it has seen, counted.
namespace megatron::plan {

/// What attention of a layer keeps of a token on one rank: of each of `heads` heads a key and a value of so many
/// numbers.
struct CacheWidths {
  std::int64_t heads = 0, key = 0, value = 0;

  std::int64_t numbers() const { return heads * (key + value); }
};
/// On each of `tp` ranks, which share a head where there are fewer heads than ranks. Latents are one head of keys.
CacheWidths cache_widths(const SelfAttention& attention, int tp);

/// Bytes that a rank with the layers of `part` keeps of a token; `element`: bytes of a number.
std::int64_t cache_token_bytes(const ModelShape& shape, const StageSpec& part, int tp, std::int64_t element);

/// Tokens of a block: as many keys as attention reads at a time from one place.
inline constexpr std::int64_t kCacheBlockTokens = 64;

/// Keys and values of all sequences of a job, in blocks that sequences take and give back.
struct CachePool {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;  ///< on all ranks that hold the model together

  std::int64_t tokens() const { return blocks * kCacheBlockTokens; }
};
/// Room for `tokens` in whole blocks.
CachePool cache_pool_of_tokens(const ResolvedRun& run, std::int64_t tokens);
/// As many whole blocks as take no more than `bytes` on all ranks together.
CachePool cache_pool_of_bytes(const ResolvedRun& run, std::int64_t bytes);

}  // namespace megatron::plan
