#include "megatron/plan/cost/kv_cache.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

ResolvedRun run_of(int tp, int pp, std::int64_t groups) {
  config::RunConfig config;
  config.model.num_layers = 6;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 8;
  config.model.num_query_groups = groups;
  config.model.vocab_size = 4096;
  config.train.dtype = "bf16";
  config.train.global_batch_size = 8;
  config.parallel.tp = tp;
  config.parallel.pp = pp;
  config.parallel.world_size = tp * pp;
  return resolve(config);
}

// A token of this model has, by layer and head of keys, a key and a value of 8 numbers of two bytes.
TEST(CachePool, CountsTheHeadsThatEachRankHas) {
  for (const int pp : {1, 2, 3}) {
    EXPECT_EQ(cache_pool_of_tokens(run_of(1, pp, 8), 64).bytes, 64 * 6 * 8 * 2 * 8 * 2);
    EXPECT_EQ(cache_pool_of_tokens(run_of(2, pp, 2), 64).bytes, 64 * 6 * 2 * 2 * 8 * 2);
    EXPECT_EQ(cache_pool_of_tokens(run_of(4, pp, 2), 64).bytes, 64 * 6 * 4 * 2 * 8 * 2) << "two ranks share a head";
  }
  const ResolvedRun run = run_of(2, 3, 8);
  EXPECT_EQ(cache_token_bytes(run.shape, run.parts[1], 2, 2), 2 * 4 * 2 * 8 * 2);
}

// DeepSeek-V2 (DeepSeek-AI 2024, table 1): a token has kv_lora_rank numbers and the rotated key, on each rank.
TEST(CachePool, CountsLatentsOnceARankInPlaceOfHeads) {
  for (const int tp : {1, 2}) {
    config::RunConfig config = run_of(tp, 1, 8).config;
    config.model.multi_latent_attention = true;
    config.model.qk_layernorm = true;
    config.model.add_bias_linear = false;
    config.model.num_query_groups = 0;
    config.model.position_embedding_type = "rope";
    config.model.kv_lora_rank = 24;
    config.model.qk_pos_emb_head_dim = 6;
    EXPECT_EQ(cache_pool_of_tokens(resolve(config), 64).bytes, 64 * 6 * tp * (24 + 6) * 2);
  }
}

TEST(CachePool, IsOfWholeBlocks) {
  const ResolvedRun run = run_of(2, 1, 8);
  const CachePool one = cache_pool_of_tokens(run, 1), two = cache_pool_of_tokens(run, 65);
  EXPECT_EQ(one.blocks, 1);
  EXPECT_EQ(one.tokens(), 64);
  EXPECT_EQ(two.blocks, 2);
  EXPECT_EQ(two.bytes, 2 * one.bytes);
  EXPECT_EQ(cache_pool_of_bytes(run, two.bytes).blocks, 2);
  EXPECT_EQ(cache_pool_of_bytes(run, two.bytes - 1).blocks, 1);
  EXPECT_EQ(cache_pool_of_bytes(run, one.bytes - 1).blocks, 0);
}

}  // namespace
}  // namespace megatron::plan
