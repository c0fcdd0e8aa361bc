#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace megatron {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random words that are a
/// pure function of a key and a counter. Every random number of a run is drawn from it by what it is for, never by
/// when or where it is drawn, so that no layout of ranks changes it (docs/decisions/).
using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr PhiloxWords philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  PhiloxWords c{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
                static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0], p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

/// A number in [0, 1), of 53 random bits.
constexpr double uniform_of(const PhiloxWords& words) {
  return static_cast<double>((std::uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

/// Key of a random stream: the run's seed and the name of what is drawn, e.g. "decoder.layers.3.mlp.linear_fc1.weight"
/// or "dropout/layer 3/attention". FNV-1a over the name, then mixed with the seed by the SplitMix64 finalizer.
constexpr std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t h = 0xCBF29CE484222325;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  h += seed * 0x9E3779B97F4A7C15;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EB;
  return h ^ (h >> 31);
}

/// Element `index` of a stream for `sample`: word `index % 4` of the block with counter (index / 4, sample).
/// Weights use sample 0; dropout uses the training sample's id and the element's index in the full activation.
constexpr std::uint32_t random_word(std::uint64_t key, std::uint64_t sample, std::uint64_t index) {
  return philox(key, index / 4, sample)[index % 4];
}

/// Dropout keeps an element when its word is at or above this: P(drop) = p to 2^-32.
constexpr std::uint32_t dropout_threshold(double p) {
  return p >= 1.0 ? 0xFFFFFFFFu : static_cast<std::uint32_t>(p * 4294967296.0);
}

}  // namespace megatron
