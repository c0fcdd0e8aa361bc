#pragma once
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "megatron/base/error.h"

namespace megatron::checkpoint {

/// XXH3 of what it is given, in order.
class RunningHash {
 public:
  void add(const void* data, std::size_t size) {
    value_ = XXH3_64bits_withSeed(data, size, value_ ^ static_cast<std::uint64_t>(size));
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  std::string text() const { return concat(std::hex, value_); }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace megatron::checkpoint
