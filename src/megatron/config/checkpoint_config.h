#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/meaning.h"

// The options of run_config.h that say what a run starts from and what it keeps.
namespace megatron::config {

struct CheckpointConfig {
  std::string load;
  std::int64_t ckpt_step = 0;
  std::int64_t override_ckpt_iteration = -1;
  bool finetune = false;
  bool no_load_optim = false;
  bool load_strict = true;
  bool use_checkpoint_args = false;
  bool use_checkpoint_schedule = false;
  std::string save;
  std::int64_t save_interval = 0;
  bool async_save = true;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;
  std::int64_t memory_interval = 0;
  std::string memory_folder = "/dev/shm";
  bool memory_neighbours = true;

  void visit(auto& v) {
    v("load", load, "Folder to start from while the run has no checkpoint of its own; empty: from new weights.", "load",
      Common());
    v("ckpt_step", ckpt_step,
      "Iteration of the checkpoint in `load` to start from; 0: the last. In the run's own folder it goes back to that.",
      "ckpt-step", OnlyInTraining());
    v("override_ckpt_iteration", override_ckpt_iteration,
      "Count on from this iteration, and read the training data from there, whatever the checkpoint says; the learning "
      "rate continues. -1: as the checkpoint says.",
      "override-ckpt-iteration", unless("checkpoint.finetune"), OnlyInTraining());
    v("finetune", finetune, "Load only the weights from `load` and start at iteration 0 with a fresh optimizer.",
      "finetune", OnlyInTraining(), Common());
    v("no_load_optim", no_load_optim, "Resume at the checkpoint's iteration, but with a fresh optimizer.",
      "no-load-optim", unless("checkpoint.finetune"), OnlyInTraining());
    v("load_strict", load_strict, "With finetune: missing and unexpected weights are an error, else a warning.",
      "load-strict", OnlyInTraining());
    v("use_checkpoint_args", use_checkpoint_args,
      "Take the network's options from the checkpoint that the run starts from, whatever else is given for them.",
      "use-checkpoint-args", OnlyInTraining());
    v("use_checkpoint_schedule", use_checkpoint_schedule,
      "Resume with the learning rate's schedule and the weight decay of the checkpoint, whatever else is given for "
      "them.",
      "use-checkpoint-opt-param-scheduler", unless("checkpoint.finetune"), OnlyInTraining());
    v("save", save, "Folder of the checkpoints; empty: train.out/checkpoints.", "save", OnlyInTraining());
    v("save_interval", save_interval, "Steps between checkpoints; 0: only at the end; -1: no checkpoints.",
      "save-interval", Common());
    v("async_save", async_save, "Write checkpoints while training continues; the next one waits for it.", "async-save");
    v("keep_last", keep_last, "Checkpoints to keep; 0: all.");
    v("keep_every", keep_every, "Also keep checkpoints whose iteration is a multiple of this; 0: no others.",
      "save-retain-interval", when("checkpoint.keep_last"));
    v("memory_interval", memory_interval,
      "Steps between checkpoints in the memory of each node, from which a run that was cut off resumes; 0: none.",
      "non-persistent-save-interval", OnlyInTraining());
    v("memory_folder", memory_folder,
      "Where each node keeps them, in a folder of their own: a file system in memory, or the node's own disk.",
      "non-persistent-local-ckpt-dir", when("checkpoint.memory_interval"), OnlyInTraining(), RanksMayDiffer());
    v("memory_neighbours", memory_neighbours,
      "Of several nodes, each also keeps what the node before it keeps, so that the run can resume when one is lost.",
      "replication", when("checkpoint.memory_interval"), OnlyInTraining());
  }
};

}  // namespace megatron::config
