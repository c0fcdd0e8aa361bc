#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "megatron/comm/processes/key_store.h"

namespace megatron::comm {

/// A name for this start of the ranks that no start before has had: the same on each of them, who must all call it.
/// In a store that outlives ranks lies what those said that ran before, and launchers whose hosts count their restarts
/// for themselves have no number that all agree on. Rank 0 draws the name and tells it to whoever asks with a word that
/// only a living process can have drawn. All return when all have heard it. Throws PeerError naming those that have not
/// come within `timeout`, as far as the store tells.
std::string name_of_start(KeyStore& keys, int rank, int size, std::chrono::milliseconds timeout);

/// The name of the last start that was complete, for who is no rank of it; nothing: none was.
std::optional<std::string> newest_start(KeyStore& keys);

}  // namespace megatron::comm
