#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/processes/peer_watch.h"

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

}  // namespace megatron::comm
