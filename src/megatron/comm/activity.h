#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// What a rank does at the moment: its own thread says it, another one may ask. A rank that hangs can be asked still.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  struct State {
    std::string phase = "starting";          ///< "step", "validation", …
    std::int64_t iteration = 0;              ///< the one under way
    std::string operation;                   ///< of the pipeline's schedule; empty: none is under way
    std::string collective;                  ///< the last that was begun: "all_reduce"; empty: none yet
    std::string group;                       ///< its ranks: "0 2"; of a message: from and to
    std::uint64_t number = 0;                ///< of the collective in its group, from 0
    bool waits = false;                      ///< for its end
    std::uint64_t operations = 0;            ///< begun so far, of all kinds
    Clock::time_point since = Clock::now();  ///< when the last of them began or ended
  };

  /// What the run's log says of its last step.
  struct Figures {
    double loss = 0, grad_norm = 0, learning_rate = 0, tokens_per_s = 0, step_ms = 0;
    std::int64_t consumed_samples = 0, memory_bytes = 0;
  };

  void begin_phase(const std::string& phase, std::int64_t iteration);
  void begin_operation(std::string operation);
  void begin_collective(const char* name, const std::string& group, std::uint64_t number);
  void wait(bool begins);

  void report(const Figures& figures);

  State state() const;
  Figures figures() const;

 private:
  void touch();

  mutable std::mutex mutex_;
  State state_;
  Figures figures_;
};

/// A group of the same ranks that tells `activity` of each collective and message, in groups split off from it too.
/// `activity` must outlive it. A group of one rank is returned as it is.
Group observed(const Group& group, Activity& activity);

}  // namespace megatron::comm
