#pragma once
#include <chrono>

#include "megatron/comm/agreement.h"
#include "megatron/comm/processes/environment.h"

namespace megatron::comm {

/// The part of a rank in the meeting of ranks (join_gloo(), join_nccl()) that has found before it that it cannot start.
/// It says so in their store, whatever they would communicate by, and throws what they all throw (throw_problems()).
/// Those that have not come are waited for: the store as long as `timeout`, the others 20 s, or as long as `timeout`
/// where this rank keeps the store. Throws PeerError where the store cannot be reached: nobody is told then.
[[noreturn]] void refuse_to_meet(const LaunchedRank& place, const Problem& problem, std::chrono::milliseconds timeout);

}  // namespace megatron::comm
