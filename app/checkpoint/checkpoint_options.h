#pragma once
#include <cstdint>
#include <string>

#include "app/jobs.h"
#include "megatron/config/options.h"

// The options of the jobs of `megatron checkpoint`, and the folders that their words name.
namespace megatron::app {

struct CheckpointVerifyFlags {
  std::string folder;
  bool json = false;

  void visit(auto& v) { v("json", json, "Print one JSON object."); }
};

struct CheckpointInfoFlags : CheckpointVerifyFlags {
  bool tensors = false;

  void visit(auto& v) {
    CheckpointVerifyFlags::visit(v);
    v("tensors", tensors, "List every tensor too (--json always does).");
  }
};

struct CheckpointReshardFlags {
  std::string from, to;
  int files = 1;
  std::string dtype;
  bool weights_only = false;
  bool json = false;

  void visit(auto& v) {
    v("files", files, "Files that share the rows of each tensor, for instance one per rank.");
    v("dtype", dtype, "Data type of the weights; empty: as they are.",
      config::Choices({"fp32", "fp64", "bf16", "fp16"}));
    v("weights_only", weights_only, "Leave out the optimizer's state.");
    v("json", json, "Print one JSON object.");
  }
};

struct CheckpointDiffFlags {
  std::string first, second;
  double tolerance = 0;
  bool json = false;

  void visit(auto& v) {
    v("tolerance", tolerance, "Maximum absolute difference that is not reported.");
    v("json", json, "Print one JSON object.");
  }
};

struct CheckpointPruneFlags {
  std::string folder;
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  bool dry_run = false;
  bool json = false;

  void visit(auto& v) {
    v("keep_last", keep_last, "Newest checkpoints to keep, 1 or more.", config::Example{"1"}, config::Required());
    v("keep_every", keep_every, "Also keep checkpoints whose iteration is a multiple of this; 0: no others.");
    v("dry_run", dry_run, "Only print what would be removed.");
    v("json", json, "Print one JSON object.");
  }
};

// What the words say. Each throws HelpRequested, and ConfigError for what is wrong whatever the folders hold.
CheckpointInfoFlags checkpoint_info_flags(const Args& args);
CheckpointVerifyFlags checkpoint_verify_flags(const Args& args);
CheckpointReshardFlags checkpoint_reshard_flags(const Args& args);
CheckpointDiffFlags checkpoint_diff_flags(const Args& args);
CheckpointPruneFlags checkpoint_prune_flags(const Args& args);

}  // namespace megatron::app
