#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/resume/resume.h"
#include "megatron/train/resume/run_state.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

// What a run needs to resume besides weights and moments: how they were rounded, the loss scale, and whose moments.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// What one rank saw of a run.
struct Leg {
  std::vector<StepResult> steps;
  at::Tensor begun, ended;  ///< the parameters
  std::vector<optim::LossScaler::State> scales;
  std::vector<std::string> messages;
  std::int64_t optimizer_steps = 0;  ///< when it began
  bool fresh = true;                 ///< all state was zero when it began
};

class ResumePrecision : public ::testing::Test {
 protected:
  config::RunConfig config(const std::string& name, const char* dtype, int tp = 1, int dp = 1) const {
    auto config = testing::tiny_config(tp, dp, dtype);
    config.train.out = (folder_ / name).string();
    config.train.train_iters = 20;
    config.model.vocab_size = 64;  // without padding, which no checkpoint holds
    config.optimizer.initial_loss_scale = 1024;
    config.optimizer.bucket_size = 2000;
    return config;
  }

  /// Begins, or resumes, until `last` steps are done, and saves; by rank.
  static std::vector<Leg> train(const config::RunConfig& config, std::int64_t last) {
    const plan::ResolvedRun run = plan::resolve(config);
    std::vector<Leg> legs(static_cast<std::size_t>(run.grid.world_size()));
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      Leg& leg = legs[static_cast<std::size_t>(world.rank())];
      const Start start = start_run(run, engine);
      leg.messages = start.messages;
      std::erase_if(leg.messages, [](const std::string& line) {  // the list of options that differ
        return line.starts_with("warning: options differ") || line.starts_with("  ");
      });
      leg.optimizer_steps = engine.optimizer.steps();
      for (const auto& slice : engine.optimizer.state())
        leg.fresh = leg.fresh && (slice.kind.empty() || slice.flat.count_nonzero().item<std::int64_t>() == 0);
      leg.begun = engine.parameters.values().clone();
      const auto note_scale = [&] {
        if (engine.scaler) leg.scales.push_back(engine.scaler->state());
      };
      note_scale();
      for (std::int64_t i = start.state.iteration; i < last; ++i) {
        leg.steps.push_back(testing::take_step(run, engine, i));
        note_scale();
      }
      leg.ended = engine.parameters.values().clone();
      const RunState state{.iteration = last, .consumed_samples = 4 * last, .schedule_samples = 4 * last};
      testing::save_run(fs::path(config.train.out) / "checkpoints", state, engine, config::save_toml(run.config), 0);
    });
    return legs;
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "run";
};

TEST_F(ResumePrecision, SixStepsRoundedAtRandomAndSixMoreAreTwelveToTheBit) {
  for (const char* dtype : {"bf16", "fp16"})
    for (const auto& [tp, dp] : {std::pair{1, 1}, {1, 2}, {2, 2}}) {
      if (dtype == std::string("fp16") && tp * dp != 2) continue;  // it is slow
      const std::string name = concat(dtype, " tp ", tp, " dp ", dp);
      auto straight = config("straight " + name, dtype, tp, dp), halves = config("halves " + name, dtype, tp, dp);
      for (auto* options : {&straight, &halves}) {
        options->optimizer.stochastic_rounding = true;
        options->optimizer.state_dtype = "bf16";
        options->optimizer.use_distributed_optimizer = dp > 1;
      }
      const auto whole = train(straight, 12), first = train(halves, 6), second = train(halves, 12);
      for (std::size_t rank = 0; rank < whole.size(); ++rank) {
        EXPECT_TRUE(second[rank].begun.equal(first[rank].ended)) << name << " rank " << rank;
        EXPECT_TRUE(second[rank].ended.equal(whole[rank].ended)) << name << " rank " << rank;
        for (std::size_t i = 0; i < 6; ++i)
          EXPECT_EQ(second[rank].steps[i].loss, whole[rank].steps[i + 6].loss) << name << " step " << i + 7;
      }
    }
}

/// As older programs wrote it, which did not say whose state a checkpoint holds.
void forget_the_optimizer(const fs::path& checkpoints) {
  const fs::path folder = checkpoint::find_checkpoint(checkpoints);
  checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  ASSERT_EQ(manifest.metadata.erase("optimizer"), 1u);
  write_file(folder / "manifest.json", checkpoint::manifest_text(manifest));
}

TEST_F(ResumePrecision, AnotherOptimizerBeginsWithNothingOfTheOneBefore) {
  const std::string continues = ": weights, counters and learning rate continue, ";
  const std::tuple<const char*, const char*, std::string> changes[] = {
      {"adam", "lion", "adam's state is left out, and that of lion (exp_avg) starts at zero"},
      {"lion", "adam", "lion's state is left out, and that of adam (exp_avg, exp_avg_sq) starts at zero"},
      {"sgd", "adam", "sgd's state is left out, and that of adam (exp_avg, exp_avg_sq) starts at zero"},
      {"lion", "sgd", "lion's state is left out, and that of sgd (momentum_buffer) starts at zero"}};
  for (const bool named : {true, false})
    for (const auto& [before, now, rest] : changes) {
      auto options = config(concat(before, now, named), "fp32", 1, 2);
      options.optimizer.use_distributed_optimizer = true;
      options.optimizer.name = before;
      const auto first = train(options, 3);
      if (!named) forget_the_optimizer(options.train.out + "/checkpoints");
      options.optimizer.name = now;
      for (const Leg& leg : train(options, 4)) {
        EXPECT_TRUE(leg.begun.equal(first[0].ended)) << before << " -> " << now;
        EXPECT_TRUE(leg.fresh) << before << " -> " << now;
        EXPECT_EQ(leg.optimizer_steps, 0);
        ASSERT_EQ(leg.messages.size(), 1u);
        EXPECT_EQ(leg.messages[0], concat("warning: the optimizer was ", before, " and is now ", now, continues, rest));
      }
      if (!named) forget_the_optimizer(options.train.out + "/checkpoints");
      for (const Leg& leg : train(options, 5)) {
        EXPECT_FALSE(leg.fresh);
        EXPECT_EQ(leg.optimizer_steps, 1);
        EXPECT_TRUE(leg.messages.empty());
      }
    }
}

TEST_F(ResumePrecision, WeightsWithoutStateBeginWithAFreshOptimizer) {
  auto options = config("run", "fp32");
  options.optimizer.name = "sgd";
  options.optimizer.sgd_momentum = 0;
  train(options, 2);
  options.optimizer.sgd_momentum = 0.9;
  const auto legs = train(options, 3);
  EXPECT_TRUE(legs[0].fresh);
  ASSERT_EQ(legs[0].messages.size(), 1u);
  EXPECT_EQ(legs[0].messages[0],
            "warning: the optimizer begins with a fresh momentum_buffer: the checkpoint does not have momentum_buffer");
}

TEST_F(ResumePrecision, TheLossScaleGoesOnWhereItWas) {
  auto straight = config("straight", "fp16", 1, 2), parts = config("parts", "fp16", 1, 2);
  for (auto* options : {&straight, &parts}) {
    options->optimizer.initial_loss_scale = 0x1p32;
    options->optimizer.loss_scale_window = 3;
  }
  const auto whole = train(straight, 20);
  std::size_t done = 0;
  bool clean = false, spent = false;
  for (const std::int64_t last : {1, 2, 8, 15, 16, 17, 18, 20}) {
    const auto part = train(parts, last);
    for (std::size_t rank = 0; rank < whole.size(); ++rank) {
      EXPECT_EQ(part[rank].scales.front(), whole[rank].scales[done]) << "after step " << done;
      for (std::size_t i = 0; i < part[rank].steps.size(); ++i)
        EXPECT_EQ(part[rank].steps[i].skipped, whole[rank].steps[done + i].skipped) << "step " << done + i + 1;
    }
    clean = clean || part[0].scales.front().clean_steps > 0;
    spent = spent || part[0].scales.front().hysteresis < 2;
    done = static_cast<std::size_t>(last);
  }
  EXPECT_TRUE(clean && spent) << "no part began in the middle of what is counted";
  EXPECT_LT(whole[0].scales.back().scale, 0x1p32);
}

TEST_F(ResumePrecision, AMissingLossScaleIsSaid) {
  auto options = config("run", "bf16");
  train(options, 2);
  options.train.dtype = "fp16";
  const auto legs = train(options, 3);
  ASSERT_EQ(legs[0].messages.size(), 1u);
  EXPECT_EQ(legs[0].messages[0], "warning: the loss scale is reset to 1024: the checkpoint does not have one");
}

}  // namespace
}  // namespace megatron::train
