#pragma once
#include <chrono>
#include <functional>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// Runs body(world) on `size` threads of this process over shared memory. Sums are taken in rank order, hence
/// deterministic. A rank whose body throws makes its peers' next collective throw PeerError naming it; when all threads
/// have ended the first rank's own exception is rethrown. Each thread gets `cores / size` (at least one) OpenMP threads.
void run_ranks(int size, const std::function<void(Group world)>& body,
               std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace megatron::comm
