#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "megatron/comm/activity.h"

namespace megatron::run {

/// Watches the ranks of this process from a thread of its own, also while they hang. Each line that it writes to
/// train.out/dump.jsonl says what one rank does: its phase, iteration, operation of the schedule, last collective with
/// its number, and the stack of its thread. It does so when SIGUSR2 comes, and once when a rank has begun or ended no
/// operation for a while. The processes of a run append to the same file.
/// Where the first rank is here it also writes heartbeat.json and metrics.prom (log.heartbeat_s). The last heartbeat
/// has as its phase how the run has ended.
class RunMonitor {
 public:
  struct Options {
    std::filesystem::path out;
    double heartbeat_s = 0;  ///< 0: none
    double hang_dump_s = 0;
    bool listens = false;  ///< to SIGUSR2; one monitor of a process at a time
    std::int64_t train_iters = 0;
    int world_size = 1;
    int restarts = 0;  ///< of the run before this start
    /// Whether `out` is still the run's to write; asked by a thread of the monitor's own. Empty: it is.
    std::function<bool()> may_write = {};
  };
  explicit RunMonitor(const Options& options);
  ~RunMonitor();
  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  class Impl;

  /// The rank whose thread makes it is watched while it lives.
  class Watched {
   public:
    Watched(RunMonitor& monitor, int rank);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

    comm::Activity& activity() const { return *activity_; }
    /// How the run has ended here, for the last heartbeat: "done"; a rank that leaves without a word has failed.
    void end(const char* how) { how_ = how; }

   private:
    Impl& monitor_;
    int rank_;
    const char* how_ = "failed";
    std::unique_ptr<comm::Activity> activity_;
  };

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::run
