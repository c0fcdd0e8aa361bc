#pragma once
#include <chrono>
#include <cstdint>
#include <optional>

#include "megatron/supervise/run_files.h"

namespace megatron::supervise {

/// Whether a job makes progress, by its heartbeats. Knows no clock and no file.
class Pulse {
 public:
  using Clock = std::chrono::steady_clock;

  /// A job that has begun and ended no operation for `limit_s` has stopped; ten times as long counts where it reads
  /// files, before its first heartbeat and in phases that do no more.
  explicit Pulse(double limit_s) : limit_s_(limit_s) {}

  /// A job starts now. `heartbeat`: what is there of the one before, which does not count.
  void start(const std::optional<Heartbeat>& heartbeat, Clock::time_point now);
  /// Whether the job has stopped; `heartbeat`: the newest.
  bool has_stopped(const std::optional<Heartbeat>& heartbeat, Clock::time_point now);

 private:
  double limit_s_, before_unix_s_ = 0;
  std::int64_t operations_ = -1;
  Clock::time_point since_;
};

}  // namespace megatron::supervise
