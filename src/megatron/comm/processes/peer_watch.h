#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/agreement.h"
#include "megatron/comm/processes/key_store.h"
#include "megatron/comm/processes/presence.h"

namespace megatron::comm {

/// Knows which rank is missing when a collective between processes fails. Each rank counts the collectives that it
/// starts; a thread writes the counts to the store five times a second and looks there for a rank that has given up.
/// So a collective costs no message of its own, and after a failure the counts tell who did not arrive.
class PeerWatch {
 public:
  /// `keeps_store`: the store ends with this rank's process, so the destructor lets the others end first, for a while.
  PeerWatch(std::shared_ptr<KeyStore> keys, int rank, int size, bool keeps_store);
  ~PeerWatch();  ///< tells the peers that this rank has ended
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  int rank() const { return rank_; }

  /// Waits until every rank has come to the store, and returns what each says there of itself, as this one says `mine`.
  /// Throws PeerError naming those that have not come within `timeout`; where some have come by refuse(), what
  /// throw_problems() does, on all alike. `check`: asked while others are waited for; what it throws ends the waiting.
  std::vector<std::string> meet(const std::string& mine, std::chrono::milliseconds timeout,
                                const PeerCheck& check = {});
  /// Comes to the store as meet() does, as a rank that cannot start.
  [[noreturn]] void refuse(const Problem& problem, std::chrono::milliseconds timeout, const PeerCheck& check = {});

  /// `id`: equal on every member, without spaces. Returns what the calls below name the group by.
  std::size_t add_group(std::string id, std::vector<int> world_ranks);
  /// This rank starts a collective of the group: its number, from 0.
  std::uint64_t enter(std::size_t group);

  /// This rank gives up: peers hear of it within a fraction of a second.
  void fail(const std::string& reason);
  /// Some rank has given up; trouble() says which and why.
  bool troubled() const { return troubled_.load(); }
  std::string trouble() const;

  /// After collective `sequence` of the group has failed here, `waited` after it was started: which ranks did not
  /// arrive, are gone or have given up. Takes up to 1.5 s.
  std::string explain(std::size_t group, std::uint64_t sequence, std::chrono::milliseconds waited);
  /// After a message between this rank and `peer` (world rank) has failed here. A peer that lives waits for a third
  /// rank as this one does for it: those of the group that are silent are named then. Takes up to 0.5 s.
  std::string explain_message(std::size_t group, int peer);

 private:
  /// What a rank says of itself when it comes.
  struct Word {
    Problem problem;   ///< why it cannot start
    std::string says;  ///< of one that can
  };
  struct GroupState {
    std::string id;
    std::vector<int> world_ranks;
    std::uint64_t entered = 0;  ///< collectives that this rank has started
  };
  struct Progress {
    std::string beat;                              ///< changes while the rank's process lives
    std::map<std::string, std::uint64_t> entered;  ///< by group
  };

  std::vector<std::string> come(const Word& mine, std::chrono::milliseconds timeout, const PeerCheck& check);
  void watch();
  void publish();
  void look_for_trouble();
  std::optional<Progress> progress_of(int rank);
  std::string describe_missing(const std::vector<int>& ranks, const GroupState& group);
  std::vector<int> silent(const std::vector<int>& ranks);

  const std::shared_ptr<KeyStore> keys_;
  const int rank_, size_;
  const bool keeps_store_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::vector<GroupState> groups_;
  std::uint64_t beat_ = 0;
  std::string trouble_;
  std::atomic<bool> troubled_{false};
  std::atomic<bool> gave_up_{false};  ///< this rank itself
  bool refused_ = false;              ///< all end for what some rank has come with; of the thread that meets
  std::thread thread_;
};

/// "rank 2 failed: …", of the first rank that gave up (PeerWatch::fail()); nothing: none has.
std::optional<std::string> told_failure(KeyStore& keys);

/// "rendezvous of 4 ranks: ranks 1, 2 did not arrive within 5 s, …".
std::string not_arrived(const std::vector<int>& missing, int size, std::chrono::milliseconds timeout);

}  // namespace megatron::comm
