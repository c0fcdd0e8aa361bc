#include "megatron/comm/processes/refusal.h"

#include "megatron/comm/processes/c10d_run_store.h"
#include "megatron/comm/processes/c10d_store.h"
#include "megatron/comm/processes/peer_watch.h"

namespace megatron::comm {

void refuse_to_meet(const LaunchedRank& place, const Problem& problem, std::chrono::milliseconds timeout,
                    const PeerCheck& check) {
  const auto store = connect_store(place, timeout, check);
  PeerWatch watch(std::make_shared<C10dKeys>(store), place.rank, place.world_size,
                  place.rank == 0 && !place.store_is_kept);
  watch.refuse(problem, timeout, check);
}

}  // namespace megatron::comm
