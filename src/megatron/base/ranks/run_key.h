#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/ranks/launched_rank.h"

namespace megatron {

/// Marks what the ranks of one run tell each other through a rendezvous store, which anybody who reaches its port may
/// write into: names there are derived from the run's secret, and each value carries a keyed hash (BLAKE2b) of its name
/// and content. Nothing is hidden: it says who wrote a value, and keeps nobody from reading it. Safe to copy, and to
/// use from several threads.
class RunKey {
 public:
  using Bytes = std::vector<std::uint8_t>;

  explicit RunKey(const std::string& secret);

  /// What the store calls `key`: 32 hexadecimal digits.
  std::string name(const std::string& key) const;
  /// `value` with the hash that says that a rank of this run wrote it under `key`.
  Bytes seal(const std::string& key, const Bytes& value) const;
  /// The value again; nullopt where no rank of this run wrote it under `key`.
  std::optional<Bytes> open(const std::string& key, const Bytes& sealed) const;

 private:
  Bytes hash(const std::string& purpose, const std::string& key, const Bytes& value, std::size_t size) const;

  Bytes key_;
};

/// A secret that nobody has seen: 64 hexadecimal digits.
std::string random_secret();

/// The secret of the run that `place` belongs to: place.secret, or what place.secret_file holds (a regular file of this
/// user that nobody else may read; white space at its end does not count). Without either it is empty, which is allowed
/// where the store's address is one that other hosts do not reach. Throws ConfigError where it is not allowed, for
/// secrets shorter than 16 characters and for files that others may read.
std::string secret_of(const LaunchedRank& place);

/// Whether `host` names the loopback interface and nothing else.
bool is_loopback(const std::string& host);

}  // namespace megatron
