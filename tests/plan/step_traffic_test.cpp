#include "megatron/plan/cost/links/step_traffic.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "megatron/plan/cost/cost_model.h"
#include "tests/plan/small_gpt.h"

namespace megatron::plan {
namespace {

config::RunConfig gpt_of(int tp, int dp, int pp = 1, std::int64_t microbatches = 1) {
  config::RunConfig config = small_gpt(tp, dp, pp, microbatches);
  config.optimizer.overlap_param_gather = false;
  return config;
}

constexpr double kStreamBytes = 2 * 32 * 64 * 2;  ///< of a microbatch's residual stream

double sum_from(const std::vector<Traffic>& traffic, int rank, const std::vector<TrafficKind>& kinds) {
  double bytes = 0;
  for (const Traffic& one : traffic)
    if (one.from == rank && std::ranges::find(kinds, one.kind) != kinds.end()) bytes += one.bytes;
  return bytes;
}

TEST(StepTraffic, IsThatOfThePapersFourSumsALayer) {
  const ResolvedRun run = resolve(gpt_of(2, 1, 1, 3));
  // Of two ranks each sends as much as the tensor has in a sum. Output: maximum, sum and target of each token in
  // float32.
  const double bytes = 3 * (4 * 4 * kStreamBytes + 2 * kStreamBytes + 3 * 2 * 32 * 4);
  EXPECT_EQ(step_traffic(run),
            (std::vector<Traffic>{{0, 1, TrafficKind::Tensor, bytes}, {1, 0, TrafficKind::Tensor, bytes}}));
  EXPECT_TRUE(step_traffic(resolve(gpt_of(1, 1))).empty());
}

TEST(StepTraffic, OfAPipelineIsAMessageEachWay) {
  config::RunConfig config = gpt_of(1, 1, 4, 8);
  config.model.untie_embeddings_and_output_weights = true;
  std::vector<Traffic> expected;
  for (int rank = 0; rank < 4; ++rank)
    for (const int to : {rank - 1, rank + 1})
      if (to >= 0 && to < 4) expected.push_back({rank, to, TrafficKind::Pipeline, 8 * kStreamBytes});
  EXPECT_EQ(step_traffic(resolve(config)), expected);
  // Chunks of layers: from the last rank to the first too.
  config.parallel.pp = config.parallel.world_size = 2;
  config.parallel.vpp = 2;
  EXPECT_EQ(sum_from(step_traffic(resolve(config)), 0, {TrafficKind::Pipeline}), 3 * 8 * kStreamBytes);
}

TEST(StepTraffic, IsWhatTheCostModelTakesTimeFor) {
  // A byte takes a second, and nothing else takes time: the parts of a step are what its slowest rank sends.
  Hardware hardware;
  hardware.ranks_per_node = 1024;
  hardware.compute.bf16_tflops = 1e15;
  hardware.memory.bandwidth_gb_s = 1e15;
  hardware.node.bandwidth_gb_s = hardware.cluster.bandwidth_gb_s = 1e-9;
  using Change = std::function<void(config::RunConfig&)>;
  const auto share = [](config::RunConfig& config, int ranks, const char* exchange) {
    config.parallel.cp = ranks;
    config.parallel.world_size *= ranks;
    config.parallel.cp_comm_type = exchange;
  };
  const std::map<std::string, std::pair<config::RunConfig, Change>> cases = {
      {"tensor", {gpt_of(4, 2, 1, 2), [](auto&) {}}},
      {"sequence", {gpt_of(4, 2), [](auto& config) { config.parallel.sp = true; }}},
      {"recompute", {gpt_of(2, 2), [](auto& config) { config.train.recompute = "full"; }}},
      {"heads",
       {gpt_of(2, 2),
        [&](auto& config) {
          share(config, 2, "a2a");
          config.train.recompute = "selective";
        }}},
      {"keys", {gpt_of(1, 2), [&](auto& config) { share(config, 4, "allgather"); }}},
      {"ring", {gpt_of(1, 2), [&](auto& config) { share(config, 4, "p2p"); }}},
      {"experts",
       {gpt_of(1, 4),
        [](auto& config) {
          config.model.add_bias_linear = false;
          config.model.num_experts = 8;
          config.model.moe_ffn_hidden_size = 32;
          config.parallel.ep = 2;
        }}},
      {"whole experts",
       {gpt_of(2, 1),
        [](auto& config) {
          config.model.add_bias_linear = false;
          config.model.num_experts = 4;
          config.model.moe_ffn_hidden_size = 32;
          config.parallel.sp = true;
          config.parallel.ep = 2;
          config.parallel.etp = 1;
        }}},
      {"shards", {gpt_of(1, 4, 1, 2), [](auto& config) { config.optimizer.use_distributed_optimizer = true; }}},
      {"gradients in turn",
       {gpt_of(1, 4, 1, 2),
        [](auto& config) {
          config.optimizer.use_distributed_optimizer = true;
          config.optimizer.data_parallel_sharding_strategy = "optim_grads";
        }}},
      {"parameters in turn", {gpt_of(1, 4, 1, 2), [](auto& config) {
                                config.optimizer.use_distributed_optimizer = true;
                                config.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
                              }}}};
  for (const auto& [name, one] : cases) {
    config::RunConfig config = one.first;
    one.second(config);
    const ResolvedRun run = resolve(config);
    const std::vector<Traffic> traffic = step_traffic(run);
    const StepParts parts = step_cost(run, hardware).parts;
    EXPECT_GT(parts.tensor + parts.data, 0) << name;
    for (const int rank : {0, run.grid.world_size() - 1}) {
      EXPECT_NEAR(sum_from(traffic, rank,
                           {TrafficKind::Tensor, TrafficKind::Sequence, TrafficKind::Context, TrafficKind::Experts}),
                  parts.tensor, 1e-6 * (1 + parts.tensor))
          << name;
      EXPECT_NEAR(sum_from(traffic, rank, {TrafficKind::Gradients, TrafficKind::Parameters}), parts.data,
                  1e-6 * (1 + parts.data))
          << name;
    }
  }
}

TEST(StepTraffic, StaysAmongThoseWhoShare) {
  config::RunConfig config = gpt_of(2, 2, 2, 4);
  config.parallel.sp = true;
  const ResolvedRun run = resolve(config);
  for (const Traffic& one : step_traffic(run)) {
    const Coord from = run.grid.coord_of(one.from), to = run.grid.coord_of(one.to);
    std::vector<Axis> differ;
    for (const Axis axis : {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp})
      if (from[static_cast<std::size_t>(axis)] != to[static_cast<std::size_t>(axis)]) differ.push_back(axis);
    ASSERT_EQ(differ.size(), 1);
    switch (one.kind) {
      case TrafficKind::Tensor:
      case TrafficKind::Sequence:
        EXPECT_EQ(differ[0], Axis::Tp);
        break;
      case TrafficKind::Pipeline:
        EXPECT_EQ(differ[0], Axis::Pp);
        EXPECT_EQ(one.bytes, 4 * kStreamBytes / 2);  // each rank its part
        break;
      case TrafficKind::Gradients:
        EXPECT_TRUE(differ[0] == Axis::Dp || differ[0] == Axis::Pp);  // the tied embedding
        break;
      default:
        ADD_FAILURE() << kTrafficNames[static_cast<std::size_t>(one.kind)];
    }
  }
}

}  // namespace
}  // namespace megatron::plan
