#pragma once
#include <vector>

#include "megatron/plan/rules.h"
#include "megatron/plan/steps/batch_plan.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/engine.h"

namespace megatron::train::testing {

/// A GPT that trains in milliseconds. Its vocabulary is padded to 62 rows, or to 66 where three ranks share it.
inline config::RunConfig tiny_config(int tp = 1, int dp = 1, const char* dtype = "fp64") {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 24;
  config.model.num_attention_heads = 6;
  config.model.vocab_size = 61;
  config.model.make_vocab_size_divisible_by = 2;
  config.data.seq_length = 10;
  config.parallel.tp = tp;
  config.parallel.world_size = tp * dp;
  config.schedule.lr = 1e-2;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.train.train_iters = 6;
  config.train.dtype = dtype;
  return config;
}

/// The same with four layers in `pp` pipeline ranks of `vpp` stages, several buckets of gradients, sp and schedule.
inline config::RunConfig tiny_pipeline_config(int tp, int dp, int pp, int vpp, bool sp, const char* schedule,
                                              const char* dtype) {
  config::RunConfig config = tiny_config(tp, dp, dtype);
  config.model.num_layers = 4;
  config.parallel.pp = pp;
  config.parallel.vpp = vpp;
  config.parallel.sp = sp;
  config.parallel.pp_schedule = schedule;
  config.parallel.world_size = tp * dp * pp;
  config.optimizer.bucket_size = 2000;
  return config;
}

/// Step number `i` of `run` on synthetic tokens.
inline StepResult take_step(const plan::ResolvedRun& run, Engine& engine, std::int64_t i) {
  return synthetic_step(engine, run, i, run.learning_rate.at(i * run.config.train.global_batch_size));
}

}  // namespace megatron::train::testing
