#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "megatron/data/index/mersenne_twister.h"

namespace megatron::data {

/// numpy's sum of contiguous doubles, to the bit: eight sums at a time, halves added in a tree above 128 values.
inline double numpy_sum(std::span<const double> values) {
  const std::size_t n = values.size();
  if (n > 128) {
    const std::size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sum = 0;
  std::size_t i = 0;
  if (n >= 8) {
    std::array<double, 8> r{};
    std::copy_n(values.begin(), 8, r.begin());
    for (i = 8; i + 8 <= n; i += 8)
      for (std::size_t j = 0; j < 8; ++j) r[j] += values[i + j];
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  }
  for (; i < n; ++i) sum += values[i];
  return sum;
}

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

  /// randint(low, high): uniform in [low, high), which must not be empty.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below_or_at(static_cast<std::uint64_t>(high - 1 - low)));
  }

  /// choice(n, p=…): an index of [0, n). `cumulative`: the running sums of the probabilities, divided by the last.
  std::size_t choice(std::span<const double> cumulative) {
    const double at = random();
    std::size_t i = 0;
    while (i + 1 < cumulative.size() && cumulative[i] <= at) ++i;
    return i;
  }

  /// geometric(p), for p < 1/3: how many tries the first success takes, >= 1.
  std::int64_t geometric(double p) {
    const double tries = std::ceil(std::log1p(-random()) / std::log(1.0 - p));
    return tries < 1 ? 1 : static_cast<std::int64_t>(tries);
  }

  /// shuffle(): Fisher-Yates from the end. The same permutation for every element type. Places are drawn some hundred
  /// ahead of the swaps, whose memory is then on its way: the whole array need not fit a cache.
  template <class T>
  void shuffle(std::span<T> values) {
    std::array<std::uint32_t, 256> places;
    for (std::size_t i = values.empty() ? 0 : values.size() - 1; i > 0;) {
      if (i > 0xFFFFFFFF) {
        std::swap(values[i], values[below_or_at(i)]);
        --i;
        continue;
      }
      const std::size_t same_mask = i - std::bit_floor(i) + 1, count = std::min(places.size(), same_mask);
      draw_places(static_cast<std::uint32_t>(i), std::span(places).first(count));
      for (std::size_t k = 0; k < count; ++k) __builtin_prefetch(&values[places[k]], 1);
      for (std::size_t k = 0; k < count; ++k) std::swap(values[i - k], values[places[k]]);
      i -= count;
    }
  }

 private:
  /// below_or_at(top), below_or_at(top - 1), …, all of which share a mask. Rejected words are written over, which
  /// costs less than a branch that nobody can predict.
  void draw_places(std::uint32_t top, std::span<std::uint32_t> out) {
    const std::uint32_t mask = ~std::uint32_t{0} >> std::countl_zero(top);
    for (std::size_t drawn = 0; drawn < out.size();) {
      const std::span<const std::uint32_t> words = engine_.ahead();
      std::size_t used = 0;
      for (; used < words.size() && drawn < out.size(); ++used) {
        out[drawn] = words[used] & mask;
        drawn += out[drawn] <= top - static_cast<std::uint32_t>(drawn) ? 1 : 0;
      }
      engine_.take(used);
    }
  }

  MersenneTwister engine_;
};

}  // namespace megatron::data
