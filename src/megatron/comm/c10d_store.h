#pragma once
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/group.h"
#include "megatron/comm/peer_watch.h"
#include "megatron/comm/rendezvous.h"

// Private to the two files that know c10d: gloo_backend.cpp and, in the CUDA plugin, nccl_backend.cpp.
namespace megatron::comm {

/// A c10d store as the dictionary that PeerWatch needs, on a connection of its own: a c10d store answers one call at a
/// time, and a blocking one must not keep the watch from being heard.
class C10dKeys final : public KeyStore {
 public:
  explicit C10dKeys(const c10::intrusive_ptr<c10d::Store>& store) : store_(store->clone()) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  void set_once(const std::string& key, const std::string& value) override {
    store_->compareSet(key, std::vector<std::uint8_t>(), std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    const auto value = store_->get(key);
    return std::string(value.begin(), value.end());
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

/// Connects to the store of `place`, which rank 0 keeps unless a launcher does.
inline c10::intrusive_ptr<c10d::Store> connect_store(const Place& place, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = place.rank == 0 && !place.store_is_kept;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
    return c10::make_intrusive<c10d::PrefixStore>(place.store_prefix, std::move(store));
  } catch (const std::exception& e) {
    throw PeerError(
        rule_got_fix(concat("rendezvous: rank ", place.rank, " cannot reach the store at ", place.address, ":",
                            place.port, options.isServer ? " (which it keeps itself)." : " (kept by rank 0)."),
                     e.what(), "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs"));
  }
}

}  // namespace megatron::comm
