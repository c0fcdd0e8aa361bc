#pragma once
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/ranks/host_address.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/presence.h"

// Private to the files that know c10d.
namespace megatron::comm {

/// A c10d store as the ranks of one run use it: no call takes longer than it may, and what no rank of the run wrote is
/// as good as absent. c10d's own client waits in the kernel for an answer, for as long as the network is silent: hence
/// the store is used on a thread of its own, and a call that gets no answer in time leaves it there and throws. While
/// such a call hangs, others throw at once. All calls throw PeerError.
class RunStore final : public c10d::Store {
 public:
  using Connect = std::function<c10::intrusive_ptr<c10d::Store>()>;

  /// Connects by `connect`, within `timeout`; `again` makes the connections of clones. `where`, for errors:
  /// "HOST:PORT". `timeout` also limits how long get() and wait() wait for a key, and is as much as 5 s the limit of an
  /// answer. `check`: asked while the first connection is waited for; what it throws ends the waiting.
  RunStore(const Connect& connect, Connect again, RunKey key, std::string where, std::chrono::milliseconds timeout,
           const PeerCheck& check = {});
  ~RunStore() override;  ///< does not wait for a call that hangs: the thread ends when the kernel gives it up

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;  ///< a counter carries no mark of its writer
  bool deleteKey(const std::string& key) override;
  std::int64_t getNumKeys() override;

 private:
  struct Worker;
  template <class Call>
  auto ask(std::chrono::milliseconds limit, Call call, const PeerCheck& check = {}) const;
  /// The value, if a rank of this run has written one.
  std::optional<RunKey::Bytes> look(const std::string& key) const;
  RunKey::Bytes wait_for(const std::string& key, std::chrono::milliseconds timeout) const;

  Connect again_;
  RunKey key_;
  std::string where_;
  std::chrono::milliseconds answer_limit_;
  std::shared_ptr<Worker> worker_;
};

/// The store of `place`, which rank 0 keeps unless a launcher does: it listens on the address that place.address names
/// and on no other. What ranks said there in an earlier start is not seen (name_of_start): all ranks must call where
/// a launcher keeps the store. `check`: asked before and while rank 0 is waited for. Throws PeerError, what `check`
/// does, and ConfigError as secret_of().
c10::intrusive_ptr<c10d::Store> connect_store(const LaunchedRank& place, std::chrono::milliseconds timeout,
                                              const PeerCheck& check = {});

/// The store of `place`, which is open, for one more connection of this process. Throws PeerError as RunStore does.
c10::intrusive_ptr<c10d::Store> store_client(const LaunchedRank& place, std::chrono::milliseconds timeout);

/// What a launcher sees of the store that it keeps for the ranks of `place`: that of their newest start, null where
/// none is complete. Throws PeerError as RunStore does.
c10::intrusive_ptr<c10d::Store> newest_start_in_store(const LaunchedRank& place, std::chrono::milliseconds timeout);

/// addresses_of() for those who meet there. Throws PeerError where there is none.
std::vector<HostAddress> peer_addresses(const std::string& host, int port);

/// A store of this process on `address` (0: a free port), of which no rank is a client.
c10::intrusive_ptr<c10d::TCPStore> keep_store(const std::string& address, int port, std::chrono::milliseconds timeout);

}  // namespace megatron::comm
