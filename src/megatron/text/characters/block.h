#pragma once
#include <cstddef>
#include <cstring>

namespace megatron::text {

/// What `classify(const char* bytes)` says of the next 64 bytes of a text of which `left` bytes are left; behind its
/// end it sees line ends.
template <class Classify>
auto classify_block(const char* bytes, std::size_t left, const Classify& classify) {
  if (left >= 64) return classify(bytes);
  char padded[64];
  std::memset(padded, '\n', sizeof padded);
  std::memcpy(padded, bytes, left);
  return classify(padded);
}

}  // namespace megatron::text
