#pragma once
#include <functional>
#include <memory>

#include "megatron/comm/processes/environment.h"

namespace megatron::comm {

/// Throws PeerError where a rank is known to be gone; empty: nobody knows.
using PeerCheck = std::function<void()>;

/// What a rank reads before the ranks meet may take minutes, and a process that is killed meanwhile tells nobody. From
/// its first moment each rank keeps a connection to rank 0 open, which the system closes when the process ends in any
/// way; rank 0 tells the others of one that closes. For ranks of which rank 0 keeps the store: a launcher that keeps it
/// watches its processes itself.
class Presence {
 public:
  /// Starts what this rank does of it, on a thread. Rank 0 opens the store here. Throws nothing: where that cannot be,
  /// or the secret is not allowed, check() knows of nobody, and what is wrong is said when the ranks meet.
  explicit Presence(LaunchedRank place);
  /// Without met() before, the others learn that this rank has ended.
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  /// Where the rank meets the others from now on: LaunchedRank::store_is_open is set.
  const LaunchedRank& place() const;
  /// The others know all that they must know of this rank: it has met them, or has told them why it cannot.
  void met();
  /// Throws PeerError naming a rank whose process has ended without met().
  void check() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::comm
