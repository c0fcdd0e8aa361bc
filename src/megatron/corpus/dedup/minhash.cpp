#include "megatron/corpus/dedup/minhash.h"

// Highway compiles the part below once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/corpus/dedup/minhash.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace megatron::corpus::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// least[k] = min of least[k] and, over i, factors[k] * hashes[i] + terms[k], for `places` places, a multiple of 64.
/// Four vectors at a time: their twelve registers fit AVX2's sixteen, and four chains hide the latency of the
/// multiplication.
void least_values(const std::uint32_t* hashes, std::size_t n, const std::uint32_t* factors, const std::uint32_t* terms,
                  std::uint32_t* least, std::size_t places) {
  const hn::CappedTag<std::uint32_t, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t k = 0; k < places; k += 4 * lanes) {
    const auto a0 = hn::LoadU(d, factors + k), a1 = hn::LoadU(d, factors + k + lanes);
    const auto a2 = hn::LoadU(d, factors + k + 2 * lanes), a3 = hn::LoadU(d, factors + k + 3 * lanes);
    const auto b0 = hn::LoadU(d, terms + k), b1 = hn::LoadU(d, terms + k + lanes);
    const auto b2 = hn::LoadU(d, terms + k + 2 * lanes), b3 = hn::LoadU(d, terms + k + 3 * lanes);
    auto m0 = hn::LoadU(d, least + k), m1 = hn::LoadU(d, least + k + lanes);
    auto m2 = hn::LoadU(d, least + k + 2 * lanes), m3 = hn::LoadU(d, least + k + 3 * lanes);
    for (std::size_t i = 0; i < n; ++i) {
      const auto h = hn::Set(d, hashes[i]);
      m0 = hn::Min(m0, hn::Add(hn::Mul(a0, h), b0));
      m1 = hn::Min(m1, hn::Add(hn::Mul(a1, h), b1));
      m2 = hn::Min(m2, hn::Add(hn::Mul(a2, h), b2));
      m3 = hn::Min(m3, hn::Add(hn::Mul(a3, h), b3));
    }
    hn::StoreU(m0, d, least + k);
    hn::StoreU(m1, d, least + k + lanes);
    hn::StoreU(m2, d, least + k + 2 * lanes);
    hn::StoreU(m3, d, least + k + 3 * lanes);
  }
}

}  // namespace megatron::corpus::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace megatron::corpus {
namespace {

HWY_EXPORT(least_values);

constexpr std::size_t kBlock = 64;  // places that one pass over the hashes computes with the widest vectors
constexpr int kMaxHashes = 4096;

}  // namespace

double Bands::recall(double jaccard) const { return 1 - std::pow(1 - std::pow(jaccard, rows), bands); }

Bands choose_bands(int hashes, double threshold) {
  if (hashes < 1 || hashes > kMaxHashes)
    throw ConfigError(rule_got_fix(concat("a signature must have 1 to ", kMaxHashes, " hashes."), concat(hashes),
                                   "leave --hashes out"));
  if (!(threshold > 0 && threshold <= 1))
    throw ConfigError(rule_got_fix("a threshold of similarity must be above 0 and at most 1.", concat(threshold),
                                   "--threshold 0.7 (the default)"));
  Bands best{.bands = hashes, .rows = 1};
  for (int rows = 2; rows <= hashes; ++rows) {
    const Bands bands{.bands = hashes / rows, .rows = rows};
    if (bands.recall(threshold) >= 0.95) best = bands;
  }
  return best;
}

MinHasher::MinHasher(Bands bands, std::uint64_t seed) : bands_(bands) {
  if (bands.bands < 1 || bands.rows < 1 || bands.bands > kMaxHashes / bands.rows)
    throw ConfigError(rule_got_fix(concat("bands times rows must be 1 to ", kMaxHashes, "."),
                                   concat(bands.bands, " bands of ", bands.rows), "leave --bands and --rows out"));
  const auto places = static_cast<std::size_t>(bands.bands * bands.rows);
  const std::size_t padded = (places + kBlock - 1) / kBlock * kBlock;
  const std::uint64_t key = stream_key(seed, "minhash");
  for (std::size_t i = 0; i < padded; ++i) {
    factors_.push_back(random_word(key, 0, i) | 1);
    terms_.push_back(random_word(key, 1, i));
  }
}

void MinHasher::fill(std::span<const std::uint64_t> shingles, std::uint32_t* least) const {
  std::fill_n(least, factors_.size(), ~0u);
  std::array<std::uint32_t, 1024> hashes;  // 4 KB: stays in the nearest cache while all places go over it
  while (!shingles.empty()) {
    const std::size_t n = std::min(shingles.size(), hashes.size());
    for (std::size_t i = 0; i < n; ++i) hashes[i] = static_cast<std::uint32_t>(shingles[i] >> 32);
    HWY_DYNAMIC_DISPATCH(least_values)
    (hashes.data(), n, factors_.data(), terms_.data(), least, factors_.size());
    shingles = shingles.subspan(n);
  }
}

std::vector<std::uint32_t> MinHasher::signature(std::span<const std::uint64_t> shingles) const {
  std::vector<std::uint32_t> places(factors_.size());
  fill(shingles, places.data());
  places.resize(static_cast<std::size_t>(bands_.bands * bands_.rows));
  return places;
}

void MinHasher::band_keys(std::span<const std::uint64_t> shingles, std::span<std::uint32_t> keys) const {
  std::array<std::uint32_t, kMaxHashes> places;
  fill(shingles, places.data());
  const auto rows = static_cast<std::size_t>(bands_.rows);
  for (std::size_t band = 0; band < keys.size(); ++band)
    keys[band] = static_cast<std::uint32_t>(XXH3_64bits(places.data() + band * rows, rows * sizeof places[0]) >> 32);
}

}  // namespace megatron::corpus
#endif  // HWY_ONCE
