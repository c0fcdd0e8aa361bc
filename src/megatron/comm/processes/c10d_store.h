#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/processes/key_store.h"

// Private to the files that know c10d.
namespace megatron::comm {

/// A c10d store as the dictionary that ranks talk through. A c10d store answers one call at a time: a watch needs a
/// clone, so that a call of others that blocks does not keep it from being heard.
class C10dKeys final : public KeyStore {
 public:
  explicit C10dKeys(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
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
