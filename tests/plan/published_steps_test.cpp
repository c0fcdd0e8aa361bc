#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/plan/cost/cost_model.h"
#include "megatron/plan/rules.h"
#include "tests/plan/load_hardware.h"
#include "tests/testing/folders.h"

// What the cost model says of runs on A100s whose times are published, with the three constants of
// configs/hardware/dgx-a100.toml that four of them gave.
namespace megatron::plan {
namespace {

struct Model {
  const char* name;
  std::int64_t num_layers, hidden, heads;
  int tp, pp, world_size;
  std::int64_t batch;
};

config::RunConfig run_of(const Model& model, int vpp, std::int64_t micro_batch, bool with_sequence_parallelism) {
  config::RunConfig run;
  run.model.num_layers = model.num_layers;
  run.model.hidden_size = model.hidden;
  run.model.num_attention_heads = model.heads;
  run.model.vocab_size = 51200;
  run.model.make_vocab_size_divisible_by = 1024;
  run.parallel.world_size = model.world_size;
  run.parallel.tp = model.tp;
  run.parallel.pp = model.pp;
  run.parallel.vpp = vpp;
  run.parallel.sp = with_sequence_parallelism;
  run.data.seq_length = 2048;
  run.train.dtype = "bf16";
  run.train.micro_batch_size = micro_batch;
  run.train.global_batch_size = model.batch;
  run.train.recompute = with_sequence_parallelism ? "selective" : "full";
  return run;
}

double predicted_s(const config::RunConfig& run) {
  static const Hardware hardware = load_hardware(tests_folder() + "/../configs/hardware/dgx-a100.toml");
  return step_cost(resolve(run), hardware).step_s;
}

// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), tables 3 and 5: seconds
// of an iteration with all of a layer computed again, and with sequence parallelism and attention alone computed again.
TEST(PublishedSteps, WithAndWithoutRecomputationAreWithinTenPercent) {
  struct Row {
    Model model;
    int vpp;
    std::int64_t micro_batch;
    double full_s, selective_s;
    bool fitted;
  };
  const std::vector<Row> rows = {
      {{"22B", 48, 6144, 64, 8, 1, 8, 4}, 1, 4, 1.42, 1.10, true},
      {{"175B", 96, 12288, 96, 8, 8, 64, 64}, 3, 1, 18.13, 13.75, false},
      {{"530B", 105, 20480, 128, 8, 35, 280, 280}, 3, 1, 49.05, 37.83, true},
      {{"1T", 128, 25600, 160, 8, 64, 512, 512}, 1, 1, 94.42, 71.49, false},
  };
  for (const Row& row : rows) {
    const double tolerance = row.fitted ? 0.03 : 0.10;
    EXPECT_NEAR(predicted_s(run_of(row.model, row.vpp, row.micro_batch, false)) / row.full_s, 1, tolerance)
        << row.model.name;
    EXPECT_NEAR(predicted_s(run_of(row.model, row.vpp, row.micro_batch, true)) / row.selective_s, 1, tolerance)
        << row.model.name;
  }
}

// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), table 1:
// 10^12 operations a second and GPU, every layer computed again, by its equation 3. Which microbatches and how many
// stages a rank has is not said: the fastest that the model finds.
TEST(PublishedSteps, OfTenSizesAreWithinTenPercent) {
  const std::vector<std::pair<Model, double>> rows = {
      {{"1.7B", 24, 2304, 24, 1, 1, 32, 512}, 137},          {{"3.6B", 30, 3072, 32, 2, 1, 64, 512}, 138},
      {{"7.5B", 36, 4096, 32, 4, 1, 128, 512}, 142},         {{"18.4B", 40, 6144, 48, 8, 1, 256, 1024}, 135},
      {{"39.1B", 48, 8192, 64, 8, 2, 512, 1536}, 138},       {{"76.1B", 60, 10240, 80, 8, 4, 1024, 1792}, 140},
      {{"145.6B", 80, 12288, 96, 8, 8, 1536, 2304}, 148},    {{"310.1B", 96, 16384, 128, 8, 16, 1920, 2160}, 155},
      {{"529.6B", 105, 20480, 128, 8, 35, 2520, 2520}, 163}, {{"1008B", 128, 25600, 160, 8, 64, 3072, 3072}, 163},
  };
  for (const auto& [model, tflops] : rows) {
    const auto l = static_cast<double>(model.num_layers), h = static_cast<double>(model.hidden);
    const double s = 2048, v = 51200,
                 operations =
                     96 * static_cast<double>(model.batch) * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
    const double published_s = operations / (tflops * 1e12 * model.world_size);
    double fastest = std::numeric_limits<double>::infinity();
    const std::int64_t samples = model.batch * model.tp * model.pp / model.world_size;
    for (const std::int64_t micro_batch : {1, 2, 4})
      for (int vpp = 1; vpp <= 5; ++vpp) {
        const bool in_turns = model.pp > 1 && samples / micro_batch % model.pp == 0;
        if (samples % micro_batch != 0 || model.num_layers % (model.pp * vpp) != 0 || (vpp > 1 && !in_turns)) continue;
        fastest = std::min(fastest, predicted_s(run_of(model, vpp, micro_batch, false)));
      }
    EXPECT_NEAR(fastest / published_s, 1, 0.10) << model.name;
  }
}

// This program's own steps on one H200, an H100 with faster memory
// (bench/results/gpu-bundle_2026-11-26_nvidia-h200.md): bf16, no dropout; nothing is fitted to them but attention's two
// rates, which were measured apart.
TEST(MeasuredSteps, OfThisProgramOnAnH200AreWithinFivePercent) {
  Hardware hardware = load_hardware(tests_folder() + "/../configs/hardware/dgx-h100.toml");
  hardware.memory.bandwidth_gb_s = 4800;
  const auto step_ms = [&](const char* recipe, std::int64_t batch) {
    config::RunConfig run;
    config::load_toml(run, concat(tests_folder(), "/../configs/", recipe, ".toml"));
    run.model.hidden_dropout = run.model.attention_dropout = 0;
    run.schedule = {};
    run.parallel.world_size = 1;
    run.train.dtype = "bf16";
    run.train.micro_batch_size = run.train.global_batch_size = batch;
    return 1e3 * step_cost(resolve(run), hardware).step_s;
  };
  EXPECT_NEAR(step_ms("gpt_1.3b", 4) / 137.58, 1, 0.05);
  EXPECT_NEAR(step_ms("gpt2_124m", 16) / 34.43, 1, 0.05);
}

// torchtitan's benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3: Llama 3.1 8B in bf16, fully sharded and
// compiled, tokens a second and GPU. H100s of 500 W whose memory moves 2.4 TB/s; attention is FlashAttention-2's, of
// which Shah et al. (2024) give 333 and 318 of 989.4 TFLOP/s. What products reach at that power is fitted to the run on
// one node; every other product of a layer is computed again there, which is about what the MLPs' first ones are.
TEST(PublishedSteps, OfATorchtitanRunOnSixteenNodesIsWithinTenPercentAfterAFitOnOne) {
  Hardware hardware = load_hardware(tests_folder() + "/../configs/hardware/dgx-h100.toml");
  hardware.memory.bandwidth_gb_s = 2400;
  hardware.compute.attention_forward_efficiency = 333 / 989.4;
  hardware.compute.attention_backward_efficiency = 318 / 989.4;
  hardware.compute.product_efficiency = 0.523;
  const auto tokens_per_s = [&](int ranks) {
    config::RunConfig run;
    config::load_toml(run, tests_folder() + "/../configs/llama3_8b.toml");
    run.parallel.tp = run.parallel.pp = 1;
    run.parallel.sp = false;
    run.parallel.world_size = ranks;
    run.optimizer.use_distributed_optimizer = true;
    run.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
    run.train.micro_batch_size = 2;
    run.train.global_batch_size = 2 * ranks;
    run.train.recompute = "selective";
    run.train.recompute_modules = {"mlp"};
    return 2 * 8192 / step_cost(resolve(run), hardware).step_s;
  };
  EXPECT_NEAR(tokens_per_s(8) / 6667, 1, 0.02);
  EXPECT_NEAR(tokens_per_s(128) / 6514, 1, 0.10);
}

}  // namespace
}  // namespace megatron::plan
