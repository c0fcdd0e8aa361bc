#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/presence.h"
#include "megatron/comm/threads/local_backend.h"

// Gloo, the transport between processes and hosts on CPU: c10d's ProcessGroupGloo behind our interface.
namespace megatron::comm {

/// Joins the world that `place` describes: waits at its store until every rank has come, then connects. The connections
/// use place.interface or, where that is empty, the address from which this host reaches the store. Throws PeerError
/// naming the ranks that do not come within `timeout`; later failures are PeerErrors of the collectives. `check`: asked
/// before and while others are waited for (Presence::check()).
///
/// A blocking send returns when its receive has been posted, as on every backend.
Group join_gloo(const LaunchedRank& place, std::chrono::milliseconds timeout, const PeerCheck& check = {});

/// run_ranks over Gloo: threads of this process that talk through the loopback interface.
void run_gloo_ranks(int size, const std::function<void(Group world)>& body, const LocalOptions& options);
/// run_gloo_ranks() where each rank brings its own secret of the run: who does not know that of the others is no rank,
/// and connecting fails with a PeerError.
void run_gloo_ranks_of(const std::vector<std::string>& secrets, const std::function<void(Group world)>& body,
                       const LocalOptions& options);

/// The rendezvous store, kept by the program that starts the ranks: it outlives each of them.
class StoreServer {
 public:
  StoreServer();  ///< on a free port of the loopback interface
  ~StoreServer();
  int port() const;
  /// "rank 2 failed: …", as the first of the ranks of `place` that gave up has told the others; "": none has, or it
  /// cannot be known. Takes up to 1 s.
  std::string told_failure(const LaunchedRank& place) const;
  /// Whether all ranks of `place` have come to the store, at some time. Takes up to 1 s.
  bool all_have_come(const LaunchedRank& place) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::comm
