#pragma once
#include <vector>

#include "megatron/schedule/program.h"

namespace megatron::schedule {

/// Microbatches 0, 1, 2, … of one kind of op on one stage.
class Counter {
 public:
  Counter(std::vector<Op>& ops, int num_microbatches) : ops_(ops), num_microbatches_(num_microbatches) {}

  /// Past the last microbatch an op is counted and left out.
  void next(Kind kind, int stage) {
    if (done < num_microbatches_) ops_.push_back({kind, stage, done});
    ++done;
  }

  int done = 0;

 private:
  std::vector<Op>& ops_;
  int num_microbatches_;
};

}  // namespace megatron::schedule
