#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/meaning.h"

// The options of run_config.h that say what a run prints and writes about itself.
namespace megatron::config {

struct LogConfig {
  std::int64_t interval = 10;
  std::string progress = "auto";
  bool progress_file = false;
  std::string format = "wide";
  std::vector<std::string> fields;
  bool throughput = true;
  bool params_norm = false;
  bool num_zeros_in_grad = false;
  bool moe_per_layer = false;
  std::int64_t memory_interval = 0;
  bool straggler = false;
  std::int64_t timing_level = 0;
  std::string timing_option = "minmax";
  bool timing_barrier = false;
  double heartbeat_s = 0;
  std::string trace;
  bool profile = false;
  std::int64_t profile_step_start = 10;
  std::int64_t profile_step_end = 12;
  std::vector<std::int64_t> profile_ranks = {0};
  bool tensorboard = true;
  std::string tensorboard_dir;
  std::int64_t tensorboard_interval = 1;
  bool validation_ppl_to_tensorboard = true;
  bool memory_to_tensorboard = true;
  bool loss_scale_to_tensorboard = true;
  bool timers_to_tensorboard = true;
  bool world_size_to_tensorboard = false;
  std::string wandb_project;
  std::string wandb_exp_name;
  std::string wandb_entity;
  std::string wandb_save_dir;

  void visit(auto& v) {
    v("interval", interval, "Steps between console lines.", "log-interval", Common());
    v("progress", progress, "Progress line with ETA; auto: on a terminal.", RanksMayDiffer(),
      Choices({"auto", "on", "off"}));
    v("progress_file", progress_file,
      "Append to progress.txt in the folder of checkpoints, in Megatron-LM's lines, when the run starts and saves.",
      "log-progress", RanksMayDiffer(), OnlyInTraining());
    v("format", format, "Console line: wide, Megatron-LM's, or compact.", Choices({"wide", "compact"}),
      RanksMayDiffer());
    v("fields", fields, "Also on the wide console line.", Choices({"tokens_per_s", "memory", "eta"}), RanksMayDiffer());
    v("throughput", throughput, "Model FLOP/s per rank on the console line.", "log-throughput", RanksMayDiffer());
    v("params_norm", params_norm, "Compute and log the L2 norm of all parameters after each step.", "log-params-norm");
    v("num_zeros_in_grad", num_zeros_in_grad, "Count and log the gradient's elements that are exactly zero.",
      "log-num-zeros-in-grad");
    v("moe_per_layer", moe_per_layer,
      "Log the figures of experts of each layer, and how many copies of tokens chose each expert.",
      "moe-per-layer-logging", RanksMayDiffer());
    v("memory_interval", memory_interval, "Steps between lines with the memory of all ranks; 0: none.",
      "log-memory-interval");
    v("straggler", straggler, "At each console line, name the rank that computed longest.", "log-straggler");
    v("timing_level", timing_level, "Timers: 0 none, 1 the parts of a step, 2 also each kind of pass and message.",
      "timing-log-level");
    v("timing_option", timing_option, "Timers over ranks: longest, shortest and longest, or each.", "timing-log-option",
      Choices({"max", "minmax", "all"}), when("log.timing_level"));
    v("timing_barrier", timing_barrier, "All ranks meet before each timer of level 1 starts.",
      "barrier-with-level-1-timing", when("log.timing_level"));
    v("heartbeat_s", heartbeat_s,
      "Seconds between states of the run in train.out/heartbeat.json, and for Prometheus in metrics.prom; 0: none.",
      "heartbeat-s", RanksMayDiffer(), OnlyInTraining());
    v("trace", trace,
      "File (.json) for the measured timeline of the run's last step, in Chrome's trace format; a picture of it and "
      "the simulated one has the same name with .svg. Empty: none.",
      OnlyInTraining());
    v("profile", profile,
      "Write the timeline of each step from profile_step_start up to profile_step_end, as log.trace does, to "
      "train.out/profile.",
      "profile", OnlyInTraining());
    v("profile_step_start", profile_step_start, "First step that is profiled, counted from 0.", "profile-step-start",
      when("log.profile"), OnlyInTraining());
    v("profile_step_end", profile_step_end, "Step at which profiling ends.", "profile-step-end", when("log.profile"),
      OnlyInTraining());
    v("profile_ranks", profile_ranks, "Ranks whose pipelines are profiled.", "profile-ranks", when("log.profile"),
      OnlyInTraining());
    v("tensorboard", tensorboard, "Write TensorBoard event files.", RanksMayDiffer());
    v("tensorboard_dir", tensorboard_dir, "Folder of the TensorBoard event files. Empty: train.out.", "tensorboard-dir",
      RanksMayDiffer(), when("log.tensorboard"));
    v("tensorboard_interval", tensorboard_interval, "Steps between values for TensorBoard and W&B.",
      "tensorboard-log-interval", RanksMayDiffer());
    v("validation_ppl_to_tensorboard", validation_ppl_to_tensorboard, "Validation perplexity among the curves.",
      "log-validation-ppl-to-tensorboard", RanksMayDiffer());
    v("memory_to_tensorboard", memory_to_tensorboard, "Memory of the first rank's process among the curves.",
      "log-memory-to-tensorboard", RanksMayDiffer());
    v("loss_scale_to_tensorboard", loss_scale_to_tensorboard, "Loss scale among the curves.",
      "log-loss-scale-to-tensorboard", RanksMayDiffer());
    v("timers_to_tensorboard", timers_to_tensorboard, "Times and throughput among the curves.",
      "log-timers-to-tensorboard", RanksMayDiffer());
    v("world_size_to_tensorboard", world_size_to_tensorboard, "Number of ranks among the curves.",
      "log-world-size-to-tensorboard", RanksMayDiffer());
    v("wandb_project", wandb_project, "W&B project: write a run that `wandb sync` uploads. Empty: none.",
      "wandb-project", RanksMayDiffer());
    v("wandb_exp_name", wandb_exp_name, "Name of the run there. Empty: that of train.out.", "wandb-exp-name",
      RanksMayDiffer(), when("log.wandb_project"));
    v("wandb_entity", wandb_entity, "User or team there. Empty: the one who uploads.", "wandb-entity", RanksMayDiffer(),
      when("log.wandb_project"));
    v("wandb_save_dir", wandb_save_dir, "Folder of the offline runs. Empty: train.out.", "wandb-save-dir",
      RanksMayDiffer(), when("log.wandb_project"));
  }
};

}  // namespace megatron::config
