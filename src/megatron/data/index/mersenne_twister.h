#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace megatron::data {

/// MT19937 (Matsumoto and Nishimura 1998) seeded by init_genrand, as numpy's RandomState and std::mt19937: the same
/// words, made 624 at a time by loops that a compiler turns into vector instructions.
class MersenneTwister {
 public:
  explicit MersenneTwister(std::uint32_t seed) {
    state_[0] = seed;
    for (std::uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }

  std::uint32_t operator()() {
    if (next_ == kWords) refill();
    return words_[next_++];
  }

  /// The words that come next, at least one; take() says how many of them were used.
  std::span<const std::uint32_t> ahead() {
    if (next_ == kWords) refill();
    return std::span(words_).subspan(next_);
  }
  void take(std::size_t words) { next_ += words; }

 private:
  static constexpr std::size_t kWords = 624, kMiddle = 397;

  // Three loops without a dependency between neighbours: word i needs words i, i + 1 and i + 397 of the old state or,
  // from 227 on, word i - 227 of the new one.
  void refill() {
    const auto twisted = [](std::uint32_t high, std::uint32_t low) {
      const std::uint32_t y = (high & 0x80000000u) | (low & 0x7FFFFFFFu);
      return (y >> 1) ^ ((0u - (y & 1u)) & 0x9908B0DFu);
    };
    constexpr std::size_t kOld = kWords - kMiddle;
    for (std::size_t i = 0; i < kOld; ++i) state_[i] = state_[i + kMiddle] ^ twisted(state_[i], state_[i + 1]);
    for (std::size_t begin = kOld; begin < kWords - 1; begin += kOld)
      for (std::size_t i = begin; i < std::min(begin + kOld, kWords - 1); ++i)
        state_[i] = state_[i - kOld] ^ twisted(state_[i], state_[i + 1]);
    state_[kWords - 1] = state_[kMiddle - 1] ^ twisted(state_[kWords - 1], state_[0]);
    for (std::size_t i = 0; i < kWords; ++i) {
      std::uint32_t y = state_[i];
      y ^= y >> 11;
      y ^= (y << 7) & 0x9D2C5680u;
      y ^= (y << 15) & 0xEFC60000u;
      words_[i] = y ^ (y >> 18);
    }
    next_ = 0;
  }

  std::array<std::uint32_t, kWords> state_{}, words_{};
  std::size_t next_ = kWords;
};

}  // namespace megatron::data
