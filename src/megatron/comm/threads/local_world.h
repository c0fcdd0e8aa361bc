#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/comm/threads/local_op.h"
#include "megatron/comm/threads/wake.h"

// The shared state behind the local backend: one LocalWorld a run_ranks, one LocalRoom a group.
namespace megatron::comm {

class LocalRoom;

/// The operations that one rank has posted and not yet waited for, in the order of their posts. While it has them, the
/// rank does pieces of those that all participants have posted: its share whenever it posts (`do_share`), and whatever
/// there is while it waits for a peer (`do_piece`). Called by the rank's own thread; a handle may be dropped by
/// another.
class UnwaitedOps {
 public:
  void add(LocalRoom& room, std::shared_ptr<LocalOp> op);
  void remove(const LocalOp& op);
  void do_share();
  bool do_piece();  ///< false: there is nothing to do

 private:
  struct Entry {
    LocalRoom* room;  ///< the world keeps it
    std::shared_ptr<LocalOp> op;
    std::int64_t done = 0;  ///< pieces that this rank did when it posted
  };
  std::int64_t work(Entry& entry, std::int64_t limit) const;

  std::mutex mutex_;  // guards what follows
  std::vector<Entry> entries_;
};

/// What has become of the ranks of one run_ranks, and its groups.
class LocalWorld {
 public:
  LocalWorld(int size, std::chrono::milliseconds timeout);

  std::chrono::milliseconds timeout() const { return timeout_; }
  bool own_core() const { return own_core_; }
  UnwaitedOps& unwaited(int rank) { return unwaited_[static_cast<std::size_t>(rank)]; }

  /// The rank has returned from its body: it will join no further collective.
  void rank_ended(int rank);
  /// The rank gives up. Every rank that waits, now or later, for something that is not complete gets PeerError.
  void rank_failed(int rank, const std::string& reason);
  bool troubled() const { return troubled_.load(std::memory_order_acquire); }  ///< a rank has ended or failed
  /// Why an operation that still lacks `missing` (world ranks) cannot complete; empty: it may.
  std::string obstacle(const std::vector<int>& missing) const;

  /// The room of the group `world_ranks`, the `sequence`-th split of room `parent`. Throws std::invalid_argument where
  /// two ranks disagree on who is in the group.
  std::shared_ptr<LocalRoom> room(std::uint64_t parent, std::uint64_t sequence, const std::vector<int>& world_ranks);

 private:
  enum class State : std::uint8_t { Running, Ended, Failed };
  void change_state(int rank, State state, const std::string& reason);

  const std::chrono::milliseconds timeout_;
  const bool own_core_;
  std::vector<UnwaitedOps> unwaited_;  ///< of each rank
  mutable std::mutex mutex_;           // guards what follows
  std::vector<State> states_;
  int first_failed_ = -1;
  std::string first_reason_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, int>, std::shared_ptr<LocalRoom>> rooms_;
  std::uint64_t next_room_id_ = 0;
  std::atomic<bool> troubled_{false};
};

/// Where the ranks of one group meet: matches their calls by order, and sends with receives by (source, destination,
/// tag).
class LocalRoom {
 public:
  LocalRoom(LocalWorld& world, std::uint64_t id, std::vector<int> world_ranks);

  std::uint64_t id() const { return id_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  LocalWorld& world() const { return world_; }
  void notify() { wake_.notify(); }

  /// Brings `call` as the `sequence`-th collective of `rank`, then does the rank's share of what it has posted. Never
  /// waits for a peer.
  std::shared_ptr<LocalOp> post(int rank, std::uint64_t sequence, OpCall call);
  std::shared_ptr<LocalOp> post_send(int source, int destination, int tag, at::Tensor tensor);
  std::shared_ptr<LocalOp> post_recv(int source, int destination, int tag, at::Tensor tensor);

  /// Completes `op`, which `participant` has posted. `members`: the group rank of each participant. Throws PeerError
  /// when a participant cannot or does not come, std::invalid_argument when the arguments do not fit together.
  void finish(LocalOp& op, const std::vector<int>& members, int participant);
  /// Instead of finish() where an exception ends `participant`: completes `op` if all have come, else leaves it without
  /// waiting. Peers that wait for it learn why when the rank ends.
  void leave(LocalOp& op, const std::vector<int>& members, int participant);

 private:
  struct Entry {
    std::shared_ptr<LocalOp> op;
    int num_posted = 0;
  };
  struct Mailbox {
    std::deque<std::shared_ptr<LocalOp>> waiting;  ///< all sends or all receives
    bool holds_sends = false;
  };

  UnwaitedOps& unwaited(int rank) { return world_.unwaited(world_ranks_[static_cast<std::size_t>(rank)]); }
  std::shared_ptr<LocalOp> match(bool is_send, int source, int destination, int tag, at::Tensor tensor);
  std::vector<int> missing(const LocalOp& op, const std::vector<int>& members) const;
  [[noreturn]] void fail(LocalOp& op, const std::string& why) const;

  LocalWorld& world_;
  const std::uint64_t id_;
  const std::vector<int> world_ranks_;
  Wake wake_;
  std::mutex mutex_;        // guards what follows, for a few instructions at a time
  std::deque<Entry> open_;  ///< collectives that not every rank has posted yet
  std::uint64_t first_open_ = 0;
  std::map<std::tuple<int, int, int>, Mailbox> mailboxes_;
};

}  // namespace megatron::comm
