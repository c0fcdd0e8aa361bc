#include <cstdio>
#include <filesystem>
#include <string>

#include "app/jobs.h"
#include "app/train/pretrain_options.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/interchange/weights.h"
#include "megatron/run/ranks.h"
#include "megatron/run/training.h"

// Megatron-LM's programs under their own arguments.
namespace megatron::app {
namespace {

namespace fs = std::filesystem;

bool has_weights(const fs::path& folder) {
  return checkpoint::has_checkpoint(folder) || interchange::is_foreign(folder);
}

bool is_same_folder(const fs::path& one, const fs::path& other) {
  const auto whole = [](const fs::path& path) { return (fs::absolute(path) / "").lexically_normal(); };
  return whole(one) == whole(other);
}

/// As there: a folder without checkpoint is no error, nor is one that is not there yet. Returns what to say of it.
std::string settle_load(config::MegatronTranslation& translation) {
  config::CheckpointConfig& saved = translation.config.checkpoint;
  if (saved.load.empty() || has_weights(saved.load)) return "";
  const std::string absent = saved.load;
  if (!translation.pretrained.empty() && translation.pretrained != absent) {
    saved.load = translation.pretrained;
    saved.finetune = true;
    const bool renumbers = saved.override_ckpt_iteration >= 0;
    saved.override_ckpt_iteration = -1;
    return concat("note: ", absent, " has no checkpoint: the run begins with the weights of ", saved.load,
                  renumbers ? ", and --override-ckpt-iteration is ignored" : "");
  }
  if (translation.load_must_exist || !translation.pretrained.empty() || saved.ckpt_step > 0)
    return "";  // said where it is opened
  saved.finetune = saved.no_load_optim = false;
  // The recipe of a run that saves there keeps the option, so that the same command resumes.
  if (saved.override_ckpt_iteration < 0 || !is_same_folder(absent, saved.save)) {
    saved.load.clear();
    saved.override_ckpt_iteration = -1;
  }
  return concat("warning: --load ", absent, " has no checkpoint: the run starts from scratch");
}

/// Checkpoints in the folder of --save are resumed by a run here, but not there: only those of --load are.
void refuse_other_checkpoints(const config::CheckpointConfig& saved) {
  if (saved.save.empty() || !checkpoint::has_checkpoint(saved.save)) return;
  if (!saved.load.empty() && is_same_folder(saved.load, saved.save)) return;
  throw ConfigError(
      rule_got_fix("the folder of --save must have no checkpoints but those that --load names.",
                   concat("checkpoints in ", saved.save, ", --load ", saved.load.empty() ? "not given" : saved.load),
                   concat("--load ", saved.save, " to resume from them, or --save of another folder")));
}

int run_pretrain(const std::string& program, const Args& args) {
  config::MegatronTranslation translation = pretrain_options(program, args);
  const std::string of_load = settle_load(translation);
  refuse_other_checkpoints(translation.config.checkpoint);
  const run::TrainingJob job = run::open_training(translation.config);
  if (run::speaks_for(job)) {
    const std::string ignored = config::ignored_line(translation);
    for (const std::string& line : {of_load, ignored})
      if (!line.empty()) write_line(stderr, concat(program, ": ", line));
    for (const std::string& note : job.notes) write_line(stderr, concat(program, ": ", note));
    if (!has_gpus() && translation.config.parallel.device == "cpu")
      write_line(stderr, concat(program, ": no GPU here: the ranks compute on the CPU"));
  }
  return run::train(job, {.stop_on_signals = true});
}

}  // namespace

int pretrain_gpt(const Args& args) {
  return run::run_job_of_ranks([&] { return run_pretrain("pretrain_gpt", args); });
}

int pretrain_bert(const Args& args) {
  return run::run_job_of_ranks([&] { return run_pretrain("pretrain_bert", args); });
}

int pretrain_t5(const Args& args) {
  return run::run_job_of_ranks([&] { return run_pretrain("pretrain_t5", args); });
}

}  // namespace megatron::app
