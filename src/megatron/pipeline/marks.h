#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <vector>

namespace megatron::pipeline {

using Clock = std::chrono::steady_clock;

/// Moments of what a rank computes, in order: on a CPU when the host is there, on another device when its current
/// stream is. What a host has given to a GPU it only sees begin.
class Marks {
 public:
  explicit Marks(at::Device device) : device_(device) {}

  void add();
  /// All of them by the host's clock, and none are left. Waits for the device once.
  std::vector<Clock::time_point> take();

 private:
  at::Device device_;
  std::vector<Clock::time_point> times_;
  std::vector<c10::Event> events_;
};

}  // namespace megatron::pipeline
