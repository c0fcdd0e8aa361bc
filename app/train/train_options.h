#pragma once
#include <string>

#include "megatron/config/run_config.h"

namespace megatron::app {

inline constexpr const char* kTrainUsage =
    "megatron train RECIPE.toml [--section.key value | --megatron-flag value]…\n\n"
    "Trains a GPT, BERT or T5; resumes from the last checkpoint in train.out. SIGINT and SIGTERM finish the step, "
    "save\n"
    "and exit with 3.";

/// The options of `megatron train`.
struct TrainOptions {
  config::RunConfig run;
  std::string layout = "given", hardware, fit;
  int restart = 0;  ///< what `megatron` acts on, before it becomes the program with libtorch

  void visit(auto& v) {
    v("layout", layout,
      "given: the layout of ranks that the options say; auto: the fastest that fits, as plan --search finds it, in "
      "place of their tp, sp, cp and its way, ep, pp, vpp, dp, stages, schedule, micro batch, recomputation and "
      "sharding.",
      config::Choices({"given", "auto"}));
    v("hardware", hardware,
      "With --layout auto: what the ranks run on, a file (megatron bench hardware writes one) or the name of one in "
      "configs/hardware/ without .toml.");
    v("fit", fit, "With --layout auto: memory that a rank may take, as 80GB; empty: all that the hardware has.");
    v("restart", restart,
      "How often the ranks are started again, from the newest whole checkpoint, after one has died or hung; also under "
      "torchrun, MPI and Slurm. Short for megatron run --max-restarts N -- train.");
    run.visit(v);
  }
};

}  // namespace megatron::app
