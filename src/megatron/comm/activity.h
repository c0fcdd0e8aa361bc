#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// What a rank does at the moment: its own thread says it, another one may ask. A rank that hangs can be asked still.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  /// A group of ranks, or the messages from one rank to another, and what went through it last. All its ranks count
  /// alike: one whose number is lower than that of the others is behind, and they wait for it.
  struct GroupState {
    std::string name;          ///< what the group is for: "world", "tensor", …
    std::string ranks;         ///< "0 2"; of messages "0 to 2"
    std::string collective;    ///< the last that was begun: "all_reduce"; empty: none yet
    std::uint64_t number = 0;  ///< of it, from 1
  };

  struct State {
    std::string phase = "starting";          ///< "step", "validation", …
    std::int64_t iteration = 0;              ///< the one under way
    std::string operation;                   ///< of the pipeline's schedule; empty: none is under way
    std::vector<GroupState> groups = {};     ///< that this rank is in
    int last_group = -1;                     ///< in which the last collective was begun; -1: none
    bool waits = false;                      ///< for the end of a collective
    std::uint64_t operations = 0;            ///< begun so far, of all kinds
    Clock::time_point since = Clock::now();  ///< when the last of them began or ended

    /// Where the last collective was begun; null: nowhere yet.
    const GroupState* last() const { return last_group < 0 ? nullptr : &groups[static_cast<std::size_t>(last_group)]; }
  };

  /// What the run's log says of its last step.
  struct Figures {
    double loss = 0, grad_norm = 0, learning_rate = 0, tokens_per_s = 0, step_ms = 0;
    std::int64_t consumed_samples = 0, memory_bytes = 0;
    std::int64_t skipped_steps = 0, rollbacks = 0;  ///< of the whole run so far
  };

  void begin_phase(const std::string& phase, std::int64_t iteration);
  void begin_operation(std::string operation);
  /// A group of this rank; its place in State::groups.
  int add_group(std::string name, std::string ranks);
  void name_group(int group, std::string name);
  void begin_collective(int group, const char* name);
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

/// A group of the same ranks, the world, that tells `activity` of each collective and message, in groups split off from
/// it too. `activity` must outlive it. A group of one rank is returned as it is.
Group observed(const Group& world, Activity& activity);

/// Names a group that was split off from an observed one by what it is for, instead of "part of" where it comes from;
/// any other group has no name.
void name_observed(const Group& group, const std::string& name);

}  // namespace megatron::comm
