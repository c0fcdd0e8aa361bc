#include "megatron/train/resume/chosen_iteration.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/interchange/weights.h"
#include "megatron/train/inputs.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// Whether the folder of the run's own checkpoints is `folder`, or is in it.
bool is_own(const config::RunConfig& config, const fs::path& folder) {
  std::error_code absent;
  const fs::path own = save_folder(config);
  return fs::equivalent(folder, own, absent) || fs::equivalent(folder / "checkpoints", own, absent);
}

/// checkpoint.ckpt_step of the run that saved the newest checkpoint in `own` that can be read; nothing where there is
/// none before `until`.
std::optional<std::int64_t> newest_start(const fs::path& own, const fs::path& until = {}) {
  std::error_code absent;
  for (const fs::path& newest : checkpoint::candidates(own)) {
    if (fs::equivalent(newest, until, absent)) return std::nullopt;
    try {
      return checkpoint::saved_recipe(newest).checkpoint.ckpt_step;
    } catch (const std::exception&) {  // damaged: the run would resume from the one before
    }
  }
  return std::nullopt;
}

[[noreturn]] void fail_for_absent(const fs::path& load, std::int64_t wanted) {
  std::vector<std::int64_t> there;
  for (const fs::path& place : {load, load / "checkpoints"})
    if (there.empty()) there = checkpoint::iterations_in(place);
  std::string names, fix = "--load FOLDER, that of a run's checkpoints";
  for (const std::int64_t iteration : there) names += concat(names.empty() ? "" : ", ", iteration);
  if (!there.empty()) {
    const auto after = std::ranges::upper_bound(there, wanted);
    fix = concat("--ckpt-step ", after == there.begin() ? *after : *std::prev(after));
  } else if (checkpoint::is_iteration_folder(load)) {
    fix = "leave --ckpt-step out: --load names a checkpoint";
  }
  throw ConfigError(rule_got_fix("checkpoint.ckpt_step must be an iteration that checkpoint.load has a checkpoint of.",
                                 concat(wanted, "; in ", load.string(), ": ", names.empty() ? "none" : names), fix));
}

/// How the run saves in another folder.
std::string elsewhere(const config::RunConfig& config) {
  return config.checkpoint.save.empty() ? "--train.out FOLDER" : "--save FOLDER";
}

/// In a folder where this program has saved since, Megatron-LM's iterations are no checkpoints of the run's own.
void require_native(const config::RunConfig& config) {
  const auto back = own_checkpoint_to_go_back_to(config);
  if (back && has_own_checkpoint(config) && interchange::is_foreign(*back))
    throw ConfigError(rule_got_fix("A run goes back to checkpoints that this program has saved.",
                                   back->string() + ", which another program has",
                                   concat("save elsewhere, to begin from it: ", elsewhere(config))));
}

}  // namespace

void name_chosen_iteration(config::RunConfig& config) {
  config::CheckpointConfig& options = config.checkpoint;
  if (options.ckpt_step <= 0 || options.load.empty()) return;
  const fs::path load = (fs::path(options.load) / "").parent_path();  // without a slash at its end
  const std::string name = checkpoint::iteration_name(options.ckpt_step);
  if (load.filename() == name) return require_native(config);
  if (has_own_checkpoint(config) && !is_own(config, load)) return;
  for (const fs::path& place : {load, load / "checkpoints"})
    if (fs::is_directory(place / name)) {
      options.load = (place / name).string();
      return require_native(config);
    }
  if (!config.train.skip_train && newest_start(save_folder(config)) == options.ckpt_step) return;
  fail_for_absent(load, options.ckpt_step);
}

std::optional<fs::path> own_checkpoint_to_go_back_to(const config::RunConfig& config) {
  const config::CheckpointConfig& options = config.checkpoint;
  if (options.ckpt_step <= 0 || options.load.empty() || options.finetune) return std::nullopt;
  const fs::path load = (fs::path(options.load) / "").parent_path(), own = save_folder(config);
  std::error_code absent;
  if (load.filename() != checkpoint::iteration_name(options.ckpt_step) ||
      !fs::equivalent(load.parent_path(), own, absent))
    return std::nullopt;
  if (config.train.skip_train) return load;
  const auto start = newest_start(own, load);
  if (!start || *start == options.ckpt_step) return std::nullopt;
  return load;
}

bool starts_alike(const config::RunConfig& config, const fs::path& checkpoint) {
  try {
    const config::CheckpointConfig saved = checkpoint::saved_recipe(checkpoint).checkpoint, &now = config.checkpoint;
    return saved.ckpt_step == now.ckpt_step && saved.override_ckpt_iteration == now.override_ckpt_iteration;
  } catch (const std::exception&) {
    return false;
  }
}

std::string note_of_chosen_iteration(const config::RunConfig& config, const fs::path& checkpoint) {
  const config::CheckpointConfig& options = config.checkpoint;
  std::error_code absent;
  if (options.ckpt_step <= 0 || fs::equivalent(checkpoint, options.load, absent)) return "";
  const std::int64_t before = checkpoint::saved_recipe(checkpoint).checkpoint.ckpt_step;
  const bool again = before == options.ckpt_step && !config.train.skip_train;
  return concat(again ? "note" : "warning", ": checkpoint.ckpt_step ", options.ckpt_step,
                again ? ": the run has started from there before, and resumes from what it has saved since; to start "
                        "from there again, save elsewhere: "
                      : " is not followed: the run has checkpoints of its own; to start from there, save elsewhere: ",
                elsewhere(config));
}

bool renumbers(const config::RunConfig& config, const fs::path& checkpoint, bool is_own) {
  const std::int64_t wanted = config.checkpoint.override_ckpt_iteration;
  if (wanted < 0) return false;
  return !is_own || checkpoint::saved_recipe(checkpoint).checkpoint.override_ckpt_iteration != wanted;
}

}  // namespace megatron::train
