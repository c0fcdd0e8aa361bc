#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/meaning.h"

// The options of run_config.h that say what a run starts from and what it keeps.
namespace megatron::config {

struct CheckpointConfig {
  std::string load;
  bool finetune = false;
  bool no_load_optim = false;
  bool load_strict = true;
  std::string save;
  std::int64_t save_interval = 0;
  bool async_save = true;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;

  void visit(auto& v) {
    v("load", load, "Folder to start from while the run has no checkpoint of its own; empty: from new weights.",
      "load");
    v("finetune", finetune, "Take the weights alone from `load` and begin at iteration 0 with a fresh optimizer.",
      "finetune", OnlyInTraining());
    v("no_load_optim", no_load_optim, "Go on at the checkpoint's iteration, but with a fresh optimizer.",
      "no-load-optim", unless("checkpoint.finetune"), OnlyInTraining());
    v("load_strict", load_strict,
      "finetune: weights that are missing or that the model has no place for are an error, else a warning.",
      "load-strict", OnlyInTraining());
    v("save", save, "Folder of the checkpoints; empty: train.out/checkpoints.", "save", OnlyInTraining());
    v("save_interval", save_interval, "Steps between checkpoints; 0: at the end alone.", "save-interval");
    v("async_save", async_save, "Write checkpoints while training goes on; the next one waits for it.", "async-save");
    v("keep_last", keep_last, "Checkpoints to keep; 0: all.");
    v("keep_every", keep_every, "Keep also those whose iteration this divides; 0: none because of that.",
      "save-retain-interval", when("checkpoint.keep_last"));
  }
};

}  // namespace megatron::config
