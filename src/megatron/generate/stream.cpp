#include "megatron/generate/stream.h"

#include <cstddef>
#include <utility>

namespace megatron::generate {
namespace {

/// Bytes that a character beginning with `lead` has; 1 for what begins none.
std::size_t length_of(unsigned char lead) { return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1; }

/// Length of `bytes` without a character that is still incomplete at its end.
std::size_t whole_characters(std::string_view bytes) {
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a character
    return length_of(byte) > back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

}  // namespace

Utf8Stream::Utf8Stream(std::function<void(std::string_view)> out) : out_(std::move(out)) {}

void Utf8Stream::write(std::string_view bytes) {
  held_ += bytes;
  const std::size_t whole = whole_characters(held_);
  if (whole == 0) return;
  out_(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
}

void Utf8Stream::finish() {
  if (!held_.empty()) out_(held_);
  held_.clear();
}

}  // namespace megatron::generate
