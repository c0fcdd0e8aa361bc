#include "megatron/config/megatron/translation.h"

// What a run prints and writes about itself.
namespace megatron::config {
namespace {

void curves(Translation& c, LogConfig& log) {
  log.tensorboard_dir = c.args.text("tensorboard-dir");
  log.tensorboard = !log.tensorboard_dir.empty();
  log.tensorboard_interval = c.args.integer("tensorboard-log-interval");
  log.timers_to_tensorboard = c.args.has("log-timers-to-tensorboard");
  log.loss_scale_to_tensorboard = !c.args.has("no-log-loss-scale-to-tensorboard");
  log.validation_ppl_to_tensorboard = c.args.has("log-validation-ppl-to-tensorboard");
  log.memory_to_tensorboard = c.args.has("log-memory-to-tensorboard");
  log.world_size_to_tensorboard = c.args.has("log-world-size-to-tensorboard");
  log.wandb_project = c.args.text("wandb-project");
  log.wandb_exp_name = c.args.text("wandb-exp-name");
  log.wandb_save_dir = c.args.text("wandb-save-dir");
  log.wandb_entity = c.args.text("wandb-entity");
  if (log.wandb_project.empty()) {
    log.wandb_exp_name = log.wandb_save_dir = log.wandb_entity = "";
    for (const char* name : {"wandb-exp-name", "wandb-save-dir", "wandb-entity"})
      c.ignore(name, "without --wandb-project");
  }
}

}  // namespace

void translate_logs(Translation& c) {
  LogConfig& log = c.run.log;
  log.interval = c.args.integer("log-interval");
  log.progress_file = c.args.has("log-progress") && c.args.has("save");
  if (!c.args.has("save")) c.ignore("log-progress", "without --save");
  log.throughput = c.args.has("log-throughput");
  log.params_norm = c.args.has("log-params-norm");
  log.moe_per_layer = c.args.has("moe-per-layer-logging");
  log.num_zeros_in_grad = c.args.has("log-num-zeros-in-grad");
  if (c.args.has("log-memory-interval")) log.memory_interval = c.args.integer("log-memory-interval");
  log.straggler = c.args.has("log-straggler");
  log.timing_level = c.args.integer("timing-log-level");
  log.timing_option = c.args.text("timing-log-option");
  log.timing_barrier = log.timing_level > 0 && !c.args.has("no-barrier-with-level-1-timing");
  log.profile = c.args.has("profile");
  log.profile_step_start = c.args.integer("profile-step-start");
  log.profile_step_end = c.args.integer("profile-step-end");
  if (c.args.has("profile-ranks")) {
    log.profile_ranks.clear();
    for (const std::string& word : c.args.list("profile-ranks")) {
      std::int64_t rank = 0;
      if (read_integer(word, rank)) log.profile_ranks.push_back(rank);
    }
  }
  curves(c, log);
}

}  // namespace megatron::config
