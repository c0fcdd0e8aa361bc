#pragma once
#include <optional>
#include <string>

namespace megatron::comm {

/// A small shared dictionary that every rank reaches (c10d's TCPStore or HashStore). Calls throw when it is gone.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual void set_once(const std::string& key, const std::string& value) = 0;  ///< the first value stays
  virtual std::optional<std::string> get(const std::string& key) = 0;           ///< does not wait
};

}  // namespace megatron::comm
