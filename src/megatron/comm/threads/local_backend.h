#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// How ranks that are threads of this process run.
struct LocalOptions {
  /// A collective that waits longer for a rank gives up and names it.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Called once, from the thread that called run_ranks, when a rank has failed and others still run `timeout` later: a
  /// thread cannot be ended from outside, so a program that must not hang ends itself here. The text names the ranks.
  std::function<void(const std::string& message)> on_stuck = {};
};

/// Runs body(world) on `size` threads of this process over shared memory. Sums are taken in rank order, hence
/// deterministic. A rank whose body throws makes its peers' next collective throw PeerError naming it; when all threads
/// have ended the first rank's own exception is rethrown. Each thread gets `cores / size` (at least one) OpenMP
/// threads.
///
/// There is no helper thread: with one core a rank it would take its time from the computation that it overlaps with.
/// A collective that all have posted progresses when they post further ones (each rank does its share) and while they
/// wait for anything; whoever waits for it does all that is left (docs/decisions/0011).
void run_ranks(int size, const std::function<void(Group world)>& body, const LocalOptions& options);
void run_ranks(int size, const std::function<void(Group world)>& body,
               std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace megatron::comm
