#pragma once
#include <chrono>
#include <exception>
#include <utility>

#include "megatron/base/machine/out_of_memory.h"
#include "megatron/comm/agreement.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/presence.h"

namespace megatron::comm {

/// The part of a rank in the meeting of ranks (join_gloo(), join_nccl()) that has found before it that it cannot start.
/// It says so in their store, whatever they would communicate by, and throws what they all throw (throw_problems()).
/// Those that have not come are waited for: where rank 0 keeps the store 20 s, by rank 0 itself as long as `timeout`;
/// in a launcher's store, in which no rank can speak before all have come to this start, as long as `timeout`, and none
/// is told where one never comes. Throws PeerError then, and where the store cannot be reached. `check`: see
/// PeerWatch::meet().
[[noreturn]] void refuse_to_meet(const LaunchedRank& place, const Problem& problem, std::chrono::milliseconds timeout,
                                 const PeerCheck& check = {});

/// connect(), what a rank does between its word in the store and its first collective, where others wait for it by
/// name: what fails there is a PeerError, and not told by a second word.
template <class Connect>
auto as_part_of_meeting(Connect&& connect) {
  try {
    return std::forward<Connect>(connect)();
  } catch (const PeerError&) {
    throw;
  } catch (const AgreedError&) {
    throw;
  } catch (const AgreedFailure&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(message_of(error));
  }
}

}  // namespace megatron::comm
