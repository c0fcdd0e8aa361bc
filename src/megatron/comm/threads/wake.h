#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace megatron::comm {

/// Lets threads of one process wait for a change of what they share. A waiter spins first (a peer that is at work on
/// its own core arrives within microseconds), then gives its core away, then sleeps in the kernel: with more ranks than
/// cores the peer that is waited for may need this very core.
class Wake {
 public:
  using Clock = std::chrono::steady_clock;

  /// `own_core`: each thread has a core of its own, so that spinning takes nothing from its peers.
  explicit Wake(bool own_core) : own_core_(own_core) {}

  /// Call after each change that may make somebody's `ready` true.
  void notify();

  /// Returns true as soon as ready() is; false once `deadline` has passed. `ready` reads atomics or locks.
  bool wait_until(const std::function<bool()>& ready, Clock::time_point deadline);

 private:
  const bool own_core_;
  alignas(64) std::atomic<std::uint32_t> epoch_{0};  ///< counts the changes; sleepers sleep on it
  alignas(64) std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace megatron::comm
