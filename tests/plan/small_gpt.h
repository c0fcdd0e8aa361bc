#pragma once
#include <cstdint>

#include "megatron/config/run_config.h"

namespace megatron::plan {

/// A small GPT of 4 layers; layout and the rest as the test sets them.
inline config::RunConfig small_gpt(int tp, int dp, int pp = 1, std::int64_t microbatches = 1) {
  config::RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 256;
  config.parallel.tp = tp;
  config.parallel.pp = pp;
  config.parallel.world_size = tp * dp * pp;
  config.data.seq_length = 32;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 2 * dp * microbatches;
  config.train.dtype = "bf16";
  config.optimizer.overlap_grad_reduce = false;
  return config;
}

}  // namespace megatron::plan
