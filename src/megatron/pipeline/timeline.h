#pragma once
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/pipeline/run.h"
#include "megatron/schedule/simulate.h"

namespace megatron::pipeline {

/// Measures when each operation of a program ran: computations, and communication while it was waited for.
class Recorder {
 public:
  /// Time 0, the same on every rank of a host (on others, the end of a barrier), and nothing measured yet. Collective
  /// over `pp`.
  void begin(const comm::Group& pp);
  /// Hooks::observe of the program that follows.
  void operator()(const schedule::Op& op, Clock::time_point start, Clock::time_point end);
  /// What all ranks measured, as `program`'s timeline with bubble and memory (`costs` gives the bytes). Collective over
  /// `pp`; the same on every rank.
  schedule::Timeline gather(const schedule::Program& program, const schedule::Costs& costs,
                            const comm::Group& pp) const;

 private:
  Clock::time_point zero_;
  std::vector<schedule::Slot> slots_;
};

}  // namespace megatron::pipeline
