#include "megatron/train/resume/resumed_batch.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/config/options.h"
#include "megatron/interchange/formats.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/steps/batch_schedule.h"
#include "megatron/supervise/memory_folder.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/chosen_iteration.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// Samples before iteration checkpoint.override_ckpt_iteration, as start_run() counts them: of the batch that the run
/// is to have, which is the checkpoint's, `saved`, where the options name none.
std::int64_t renumbered_samples(const config::RunConfig& config, std::int64_t saved) {
  const std::string& steps = config.schedule.step_batch_size;
  std::int64_t batch = config.train.global_batch_size;
  if (!steps.empty()) batch = plan::read_batch_steps(steps, config.data.seq_length).back().size;
  if (batch == 0) batch = saved;
  return std::clamp<std::int64_t>(config.checkpoint.override_ckpt_iteration, 0, plan::kMaxSteps) *
         std::clamp<std::int64_t>(batch, 0, plan::kMaxBatch);
}

}  // namespace

ResumedBatch resumed_batch(const config::RunConfig& config) {
  std::vector<fs::path> candidates;
  try {
    if (resumes_foreign_run(config)) {
      const auto training = interchange::training_state_of(config.checkpoint.load, /*with_optimizer=*/false);
      const std::int64_t size = training->recipe.train.global_batch_size;
      const bool renumbered = config.checkpoint.override_ckpt_iteration >= 0;
      return {size, renumbered ? renumbered_samples(config, size) : training->consumed_samples};
    }
    const auto folder = checkpoint_to_load(config);
    if (folder && !takes_weights_alone(config)) candidates = checkpoint::candidates(*folder);
  } catch (const std::exception&) {
    return {};
  }
  for (const fs::path& candidate : candidates) {
    try {
      const auto state = run_state_of(checkpoint::read_manifest(candidate), candidate);
      const std::int64_t size = checkpoint::saved_recipe(candidate).train.global_batch_size;
      if (renumbers(config, candidate, has_own_checkpoint(config))) return {size, renumbered_samples(config, size)};
      return {size, state.consumed_samples};
    } catch (const std::exception&) {  // an older one may be whole
    }
  }
  const fs::path save = save_folder(config);
  if (!candidates.empty() || !supervise::memory_run(save)) return {};
  // Without the option: where this node has one. It cannot tell what others have.
  if (config.checkpoint.memory_interval <= 0 && !supervise::newest_in_memory(config.checkpoint.memory_folder, save))
    return {};
  try {  // nodes may keep checkpoints of it in memory: its batch stays as with those on the disk
    config::RunConfig before;
    config::load_toml(before, (fs::path(config.train.out) / "recipe.toml").string());
    return {before.train.global_batch_size, 0};
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace megatron::train
