#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace megatron::data {

/// numpy.random.RandomState, bit for bit: mt19937 seeded by init_genrand, with numpy's legacy draws on top.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  std::uint32_t word() { return static_cast<std::uint32_t>(engine_()); }

  /// Uniform in [0, top]: words under a mask of the next 2^k - 1 until one fits. top = 0 draws nothing; above 2^32 - 1
  /// a try takes two words, the high one first.
  std::uint64_t below_or_at(std::uint64_t top) {
    if (top == 0) return 0;
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(top);
    for (;;) {
      std::uint64_t value = word();
      if (top > 0xFFFFFFFF) value = value << 32 | word();
      if ((value & mask) <= top) return value & mask;
    }
  }

  /// random(): 53 bits in [0, 1).
  double random() {
    const std::uint32_t a = word() >> 5, b = word() >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
  }

  /// shuffle(): Fisher-Yates from the end. The same permutation for every element type.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[below_or_at(i)]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace megatron::data
