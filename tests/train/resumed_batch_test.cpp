#include "megatron/train/resume/resumed_batch.h"

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "megatron/config/optimizers.h"
#include "megatron/config/options.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/train/inputs.h"
#include "tests/interchange/in_memory.h"
#include "tests/interchange/support.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// Writes to `folder` what Megatron-LM's run of this recipe has after iteration 3.
void write_their_run(const config::RunConfig& recipe, const fs::path& folder) {
  interchange::TrainingState state{.iteration = 3, .optimizer_steps = 3};
  state.consumed_samples = state.schedule_samples = 3 * recipe.train.global_batch_size;
  state.optimizer = recipe.optimizer.name;
  state.recipe = recipe;
  state.kinds = config::state_names(recipe.optimizer);
  std::map<std::string, at::Tensor> weights, tensors;
  for (const auto& spec : plan::model_parameters(families::shape_of(recipe.model), 1, 0)) {
    weights[spec.name] = tensors[spec.name] = at::randn(spec.shape);
    for (const std::string& kind : state.kinds)
      tensors[interchange::state_name(kind, spec.name)] = at::randn(spec.shape);
  }
  state.tensors = std::make_shared<interchange::InMemory>(tensors);
  families::FolderConfig config;
  config.model = recipe.model;
  interchange::ExportOptions options;
  options.training = &state;
  interchange::write_torch_dist(interchange::InMemory(weights), config, folder, options);
}

// A run that is renumbered begins after whole batches of its own; sizes of a schedule that are over need not divide.
void expect_samples_of_the_batch_to_come(config::RunConfig options, std::int64_t batch) {
  options.train.global_batch_size = 0;
  EXPECT_EQ(resumed_batch(options).samples, 3 * batch);
  options.checkpoint.override_ckpt_iteration = 0;
  EXPECT_EQ(resumed_batch(options).size, batch);
  EXPECT_EQ(resumed_batch(options).samples, 0);
  options.checkpoint.override_ckpt_iteration = 5;
  EXPECT_EQ(resumed_batch(options).samples, 5 * batch) << "the checkpoint's";
  options.train.global_batch_size = 3 * batch;
  EXPECT_EQ(resumed_batch(options).samples, 15 * batch);
  options.train.global_batch_size = 0;
  options.schedule.step_batch_size = "0:6 480:12";
  EXPECT_EQ(resumed_batch(options).samples, 60);
}

TEST(ResumedBatch, CountsRenumberedIterationsOfARunOfItsOwn) {
  const TemporaryFolder folder;
  config::RunConfig options = testing::tiny_config();
  options.train.out = (folder.path() / "run").string();
  const plan::ResolvedRun run = plan::resolve(options);
  Engine engine(run, {}, at::kCPU);
  testing::save_run(save_folder(options), {.iteration = 3, .consumed_samples = 12, .schedule_samples = 12}, engine,
                    config::save_toml(run.config), 0);
  options.checkpoint.load = options.train.out;
  options.train.out = (folder.path() / "other").string();
  expect_samples_of_the_batch_to_come(options, 4);
}

TEST(ResumedBatch, CountsRenumberedIterationsOfMegatronsRun) {
  const TemporaryFolder folder;
  config::RunConfig options = interchange::small_run();
  write_their_run(options, folder.path() / "theirs");
  options.checkpoint.load = (folder.path() / "theirs").string();
  options.train.out = (folder.path() / "run").string();
  expect_samples_of_the_batch_to_come(options, 8);
}

}  // namespace
}  // namespace megatron::train
