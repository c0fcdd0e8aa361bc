#pragma once
#include <chrono>
#include <functional>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// Runs `work` on every rank; it may take long on some and no time on others, which wait however long it takes: every
/// `beat`, which must be well below the group's timeout, all ranks meet in a collective. Collective over the group.
/// What `work` throws is thrown on its rank; the others get PeerError once that rank has given up, as they do where
/// its process is gone. A rank that learns of a lost peer throws when its own work is done.
void run_on_every_rank(const Group& group, const std::function<void()>& work,
                       std::chrono::milliseconds beat = std::chrono::seconds(1));

}  // namespace megatron::comm
