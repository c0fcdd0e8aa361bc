#pragma once
#include <chrono>
#include <string>

#include "megatron/comm/processes/key_store.h"

namespace megatron::comm {

/// A name for this start of the ranks that no start before has had: the same on each of them, who must all call it.
/// In a store that outlives ranks lies what those said that ran before, and launchers whose hosts count their restarts
/// for themselves have no number that all agree on. Rank 0 draws the name and tells it to whoever asks with a word that
/// only a living process can have drawn. Rank 0 returns when all have heard it, others when they have themselves.
/// Throws PeerError naming those that rank 0 has not heard of within `timeout`, or rank 0.
std::string name_of_attempt(KeyStore& keys, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace megatron::comm
