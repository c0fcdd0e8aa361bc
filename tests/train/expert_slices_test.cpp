#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/train/resume/run_state.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

// Experts that are split over another number of ranks than other weights (parallel.etp), as runs hold and save them.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;

struct ExpertRanks {
  int tp, dp, ep, etp;
  const char* sharding;  ///< "": every rank updates all that it holds

  std::string name() const { return concat("tp ", tp, " dp ", dp, " ep ", ep, " etp ", etp, " ", sharding); }
};

config::RunConfig sliced_config(const ExpertRanks& ranks) {
  config::RunConfig config = testing::tiny_config(ranks.tp, ranks.dp);
  config.model.num_attention_heads = 4;
  config.data.seq_length = 12;  // which every tp divides
  config.model.num_experts = 4;
  config.model.moe_ffn_hidden_size = 16;
  config.model.gated_linear_unit = true;  // an expert's slice is in two pieces
  config.model.moe_aux_loss_coeff = 0.1;
  config.model.moe_expert_capacity_factor = 1.1;
  config.parallel.sp = ranks.tp > 1;
  config.parallel.ep = ranks.ep;
  config.parallel.etp = ranks.etp;
  config.optimizer.use_distributed_optimizer = *ranks.sharding != '\0';
  if (*ranks.sharding != '\0') config.optimizer.data_parallel_sharding_strategy = ranks.sharding;
  return config;
}

/// Loads where `from` is given, takes steps [first, last), saves in the end where `to` is given; the losses.
std::vector<double> losses_on(const ExpertRanks& ranks, int first, int last, const fs::path& from,
                              const fs::path& to = {}) {
  const plan::ResolvedRun run = plan::resolve(sliced_config(ranks));
  std::vector<double> losses;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    if (!from.empty()) {
      EXPECT_EQ(load_run(from, engine).iteration, first);
    }
    for (int i = first; i < last; ++i) {
      const double loss = testing::take_step(run, engine, i).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
    const RunState state{.iteration = last, .consumed_samples = 4 * last, .schedule_samples = 4 * last};
    if (!to.empty()) testing::save_run(to, state, engine, "", 0);
  });
  return losses;
}

// Whole experts, halves, and experts split over ranks of other samples; back again.
TEST(ExpertSlices, ResumeInEachOther) {
  const TemporaryFolder temporary;
  const std::vector<double> straight = losses_on({1, 1, 1, 0, ""}, 0, 5, {});
  const std::vector<ExpertRanks> ways = {{2, 2, 2, 1, "optim"},
                                         {4, 1, 2, 2, ""},
                                         {2, 2, 1, 4, "optim_grads_params"},
                                         {2, 1, 2, 1, "optim_grads"},
                                         {2, 1, 1, 2, ""}};
  fs::path from;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    SCOPED_TRACE(ways[i].name());
    const auto step = static_cast<int>(i);
    const fs::path to = temporary.path() / std::to_string(i);
    EXPECT_NEAR(losses_on(ways[i], step, step + 1, from, to).at(0), straight[i], 1e-11 * straight[i]);
    from = to;
  }
}

TEST(ExpertSlices, TakeTheMemoryThatIsPlanned) {
  for (const ExpertRanks& ranks :
       {ExpertRanks{2, 2, 2, 1, ""}, {2, 2, 1, 1, "optim"}, {2, 2, 1, 4, "optim_grads_params"}}) {
    SCOPED_TRACE(ranks.name());
    const plan::ResolvedRun run = plan::resolve(sliced_config(ranks));
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      const Engine engine(run, world, at::kCPU);
      const plan::MemoryPlan planned = plan::memory_plan(run, engine.context.tensor().rank(), 0, 0);
      EXPECT_EQ(engine.parameters.value_bytes(), planned.parameters);
      EXPECT_EQ(engine.parameters.gradient_bytes(), planned.gradients);
      EXPECT_EQ(engine.optimizer.bytes(), planned.optimizer_state);
    });
  }
}

}  // namespace
}  // namespace megatron::train
