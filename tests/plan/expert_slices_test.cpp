#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/parameters/counted.h"
#include "megatron/plan/report.h"
#include "megatron/plan/rules.h"
#include "tests/plan/refusal.h"

// Experts that are split over another number of ranks than other weights (parallel.etp).
namespace megatron::plan {
namespace {

using config::RunConfig;
using testing::HasSubstr;

/// Of four experts with biases, gated, in both layers; on 8 ranks with tp 2.
RunConfig sliced_mixture(int ep, int etp) {
  RunConfig config;
  config.model.vocab_size = 64;
  config.model.make_vocab_size_divisible_by = 2;
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.num_experts = 4;
  config.model.moe_ffn_hidden_size = 48;
  config.model.gated_linear_unit = true;
  config.data.seq_length = 16;
  config.parallel.world_size = 8;
  config.parallel.tp = 2;
  config.parallel.sp = true;
  config.parallel.ep = ep;
  config.parallel.etp = etp;
  config.train.global_batch_size = 8;
  config.train.micro_batch_size = 1;
  return config;
}

constexpr std::pair<int, int> kLayouts[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {1, 4}, {2, 4}, {1, 8}};  // ep, etp

TEST(ExpertSlices, AreRefusedWhereTheyDoNotFit) {
  for (const auto& [ep, etp] : kLayouts)
    EXPECT_EQ(refusal_of(sliced_mixture(ep, etp), [](RunConfig&) {}), "no error") << ep << " " << etp;
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> all = {
      {"parallel.ep x parallel.etp must divide the ranks of a pipeline stage",
       [](RunConfig& c) { c.parallel.etp = 3; }},
      {"parallel.ep x parallel.etp must divide the ranks of a pipeline stage", [](RunConfig& c) { c.parallel.pp = 4; }},
      {"The width of experts must divide by parallel.etp",
       [](RunConfig& c) {
         c.parallel.etp = 4;
         c.model.moe_ffn_hidden_size = 46;
       }},
      {"parallel.etp splits experts: it needs model.num_experts",
       [](RunConfig& c) {
         c.model.num_experts = 0;
         c.parallel.ep = 1;
       }},
      {"parallel.etp must be from 0", [](RunConfig& c) { c.parallel.etp = -1; }}};
  for (const auto& [rule, change] : all) EXPECT_THAT(refusal_of(sliced_mixture(4, 1), change), HasSubstr(rule));
  // Whole experts have any width.
  EXPECT_EQ(refusal_of(sliced_mixture(4, 1), [](RunConfig& c) { c.model.moe_ffn_hidden_size = 47; }), "no error");
  for (const auto& [ep, etp] : kLayouts)
    EXPECT_EQ(refusal_of(sliced_mixture(ep, etp), [](RunConfig& c) { c.parallel.sp = false; }), "no error");
}

/// By parameter and first index of a slice: the ranks of the stage that hold it.
std::map<std::pair<std::string, std::int64_t>, std::vector<int>> holders_of(const ResolvedRun& run) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<int>> holders;
  for (int rank = 0; rank < run.grid.world_size(); ++rank)
    for (const ParameterSpec& spec : model_parameters(run.shape, 2, rank % 2, run.parts, expert_share(run, rank)))
      holders[{spec.name, spec.begin()}].push_back(rank);
  return holders;
}

TEST(ExpertSlices, AreHeldByTheRanksThatSumTheirGradients) {
  for (const auto& [ep, etp] : kLayouts) {
    const ResolvedRun run = resolve(sliced_mixture(ep, etp));
    const RankRoles roles = roles_of(run);
    const std::string expert = "decoder.layers.1.mlp.experts.local_experts.3.";
    std::map<std::string, int> slices;
    for (const auto& [slice, ranks] : holders_of(run)) {
      const bool of_expert = slice.first.find(".local_experts.") != std::string::npos;
      const bool whole = slice.first.ends_with("linear_fc2.bias");
      ++slices[slice.first];
      if (of_expert && !whole) {
        EXPECT_EQ(roles.gradients(ranks.front(), Weights::Experts).ranks, ranks) << slice.first;
      } else if (of_expert) {  // by each rank that has a slice of the expert
        EXPECT_EQ(std::ssize(ranks), 8 / ep) << slice.first;
      }
    }
    EXPECT_EQ(slices[expert + "linear_fc1.weight"], etp);
    EXPECT_EQ(slices[expert + "linear_fc2.weight"], etp);
    EXPECT_EQ(slices["decoder.layers.1.self_attention.linear_proj.weight"], 2);
  }
}

// Of all ranks together every element is updated once, and counted once in figures over the model.
TEST(ExpertSlices, AreUpdatedAndCountedOnce) {
  for (const auto& [ep, etp] : kLayouts)
    for (const bool sharded : {false, true}) {
      RunConfig config = sliced_mixture(ep, etp);
      config.optimizer.use_distributed_optimizer = sharded;
      const ResolvedRun run = resolve(config);
      const RankRoles roles = roles_of(run);
      std::int64_t counted = 0;
      for (int rank = 0; rank < 8; ++rank) {
        const auto specs = model_parameters(run.shape, 2, rank % 2, run.parts, expert_share(run, rank));
        const BufferLayout layout = rank_layout(run, specs);
        const Counts counts(roles.tensor(rank).index == 0, sharded || roles.gradients(rank).index == 0,
                            sharded || roles.gradients(rank, Weights::Experts).index == 0,
                            roles.tensor(rank, Weights::Experts).index == 0);
        for (const Shard& shard : shards(layout, owners_of(run, rank)))
          for (const ParameterRange& own : shard.parameters) {
            const ParameterSpec& spec = specs[static_cast<std::size_t>(own.parameter)];
            if (!counts.counts(spec)) continue;
            for (const Range& range : counted_ranges(spec, counts.whole_of(spec)))
              counted += intersection(range, own.param).size();
          }
      }
      EXPECT_EQ(counted, parameter_count(run.shape)) << ep << " " << etp << " " << sharded;
    }
}

TEST(ExpertSlices, TakeTheMemoryThatARankHasOfThem) {
  const auto plan_of = [](int ep, int etp, bool sharded) {
    RunConfig config = sliced_mixture(ep, etp);
    config.model.add_bias_linear = false;
    config.optimizer.use_distributed_optimizer = sharded;
    return largest_memory(resolve(config));
  };
  const std::int64_t experts = 2 * 4 * 3 * 32 * 48;  // elements of all
  const auto apart = [&](int ep, int etp) { return experts / ep / etp; };
  const MemoryPlan one = plan_of(1, 1, false);
  for (const auto& [ep, etp] : kLayouts) {
    const MemoryPlan plan = plan_of(ep, etp, false);
    EXPECT_EQ(one.parameters - plan.parameters, 4 * (experts - apart(ep, etp)));
    EXPECT_EQ(one.gradients - plan.gradients, 4 * (experts - apart(ep, etp)));
    EXPECT_EQ(one.optimizer_state - plan.optimizer_state, 8 * (experts - apart(ep, etp)));
    if (ep == 1 && etp == 2) continue;  // experts in buckets with the rest, which are padded elsewhere
    // An element has one state, whoever holds it: eight ranks share that of experts.
    EXPECT_EQ(plan_of(ep, etp, true).optimizer_state, plan_of(1, 1, true).optimizer_state) << ep << " " << etp;
  }
}

TEST(ExpertSlices, AreInTheReportWithTheirGroups) {
  const nlohmann::json all = report(resolve(sliced_mixture(2, 4)));
  const nlohmann::json& groups = all["groups"];
  EXPECT_EQ(groups["experts"].dump(), "[[0,4],[1,5],[2,6],[3,7]]");
  EXPECT_EQ(groups["expert_slices"].dump(), "[[0,1,2,3],[4,5,6,7]]");
  EXPECT_EQ(groups["expert_copies"].dump(), "[[0,1,2,3,4,5,6,7]]");
  std::int64_t elements = 0;
  for (const auto& parameter : all["parameter_slices"]) {
    const auto shape = parameter["shape"].get<std::vector<std::int64_t>>();
    elements += std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    if (parameter["split_dim"].is_null()) continue;
    const bool of_expert = parameter["name"].get<std::string>().find(".local_experts.") != std::string::npos;
    EXPECT_EQ(parameter["slices"].size(), of_expert ? 4u : 2u) << parameter["name"];
    std::int64_t covered = 0;
    for (const auto& slice : parameter["slices"])
      for (const auto& piece : slice) covered += piece[1].get<std::int64_t>() - piece[0].get<std::int64_t>();
    EXPECT_EQ(covered, shape.at(parameter["split_dim"].get<std::size_t>())) << parameter["name"];
  }
  EXPECT_EQ(elements, all["parameters"].get<std::int64_t>());
  EXPECT_NE(report_text(resolve(sliced_mixture(2, 4))).find(" by etp rank: "), std::string::npos);
  EXPECT_FALSE(report(resolve(sliced_mixture(2, 2)))["groups"].contains("expert_slices"));
  EXPECT_EQ(report_text(resolve(sliced_mixture(2, 2))).find("etp"), std::string::npos);
}

}  // namespace
}  // namespace megatron::plan
