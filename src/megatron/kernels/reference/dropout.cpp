#include "megatron/kernels/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <array>

#include "megatron/base/philox.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace reference {
namespace {

constexpr std::int64_t kLow32 = 0xFFFFFFFF;

/// The upper and lower half of x * multiplier, x in [0, 2^32). By 16-bit halves of x, so that no product leaves int64.
struct Product {
  at::Tensor high, low;
};
Product multiply(const at::Tensor& x, std::int64_t multiplier) {
  const at::Tensor lower = x.bitwise_and(0xFFFF) * multiplier;                    // < 2^48
  const at::Tensor upper = x.__rshift__(16) * multiplier + lower.__rshift__(16);  // < 2^49
  return {upper.__rshift__(16), upper.bitwise_and(0xFFFF).__lshift__(16).bitwise_or(lower.bitwise_and(0xFFFF))};
}

at::Tensor scaled_mask(const Dropout& dropout, const at::Tensor& words, at::ScalarType dtype) {
  const std::int64_t threshold = dropout_threshold(dropout.p);
  return (words >= threshold).to(dtype).mul_(dropout.p < 1 ? 1.0 / (1.0 - dropout.p) : 0.0);
}

}  // namespace

at::Tensor random_words(std::uint64_t key, const at::Tensor& sample, const at::Tensor& index) {
  if (!index.is_cpu() || !sample.is_cpu()) return random_words_by_operators(key, sample, index);
  const auto both = at::broadcast_tensors({sample, index});
  const at::Tensor samples = both[0].contiguous(), indices = both[1].contiguous(), words = at::empty_like(indices);
  const std::int64_t *s = samples.const_data_ptr<std::int64_t>(), *i = indices.const_data_ptr<std::int64_t>();
  std::int64_t* const out = words.mutable_data_ptr<std::int64_t>();
  PhiloxWords four{};
  for (std::int64_t n = 0; n < words.numel(); ++n) {
    // Neighbours are mostly of one block.
    if (n == 0 || s[n] != s[n - 1] || i[n] >> 2 != i[n - 1] >> 2)
      four = philox(key, static_cast<std::uint64_t>(i[n]) >> 2, static_cast<std::uint64_t>(s[n]));
    out[n] = four[static_cast<std::size_t>(i[n] & 3)];
  }
  return words;
}

at::Tensor random_words_by_operators(std::uint64_t key, const at::Tensor& sample, const at::Tensor& index) {
  const at::Tensor block = index.__rshift__(2) + sample.mul(0), high = sample + block.mul(0);
  std::array<at::Tensor, 4> c{block.bitwise_and(kLow32), block.__rshift__(32).bitwise_and(kLow32),
                              high.bitwise_and(kLow32), high.__rshift__(32).bitwise_and(kLow32)};
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product p0 = multiply(c[0], 0xD2511F53), p1 = multiply(c[2], 0xCD9E8D57);
    c = {p1.high.bitwise_xor(c[1]).bitwise_xor(std::int64_t{k0}), p1.low,
         p0.high.bitwise_xor(c[3]).bitwise_xor(std::int64_t{k1}), p0.low};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const at::Tensor word = index.bitwise_and(3);
  return at::where(word == 0, c[0], at::where(word == 1, c[1], at::where(word == 2, c[2], c[3])));
}

namespace {

/// The word of each element of an activation [s, b, h].
at::Tensor words_of(const Dropout& site, std::int64_t s, std::int64_t b, std::int64_t h, at::Device device) {
  const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
  const std::int64_t features = site.features_or(h);
  const at::Tensor sample = site.sample_ids.to(longs).view({1, b, 1});
  const at::Tensor row = at::arange(s, longs);
  const at::Tensor position = row + (row >= site.jump_at).to(at::kLong) * site.jump + site.position_offset;
  const at::Tensor index =
      position.view({s, 1, 1}) * features + (at::arange(h, longs) + site.feature_offset).view({1, 1, h});
  return random_words(site.key, sample, index);
}

}  // namespace

at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h, at::ScalarType dtype,
                        at::Device device) {
  return scaled_mask(dropout, words_of(dropout, s, b, h, device), dtype);
}

at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n, std::int64_t head_offset,
                                  std::int64_t queries, std::int64_t keys, at::ScalarType dtype, at::Device device) {
  const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor sample = dropout.sample_ids.to(longs).view({b, 1, 1, 1});
  const std::int64_t all_queries = dropout.positions_or(queries), all_keys = dropout.features_or(keys);
  const at::Tensor index = ((at::arange(n, longs) + head_offset).view({n, 1, 1}) * all_queries +
                            (at::arange(queries, longs) + dropout.position_offset).view({1, queries, 1})) *
                               all_keys +
                           at::arange(keys, longs) + dropout.feature_offset;
  return scaled_mask(dropout, random_words(dropout.key, sample, index.unsqueeze(0)), dtype);
}

}  // namespace reference

at::Tensor jitter_factors(const Dropout& site, double eps, std::int64_t s, std::int64_t b, std::int64_t h,
                          at::ScalarType dtype, at::Device device) {
  const at::Tensor from_minus_1 =
      (reference::words_of(site, s, b, h, device).__rshift__(8).to(at::kDouble) + 0.5).mul_(0x1p-23).sub_(1);
  return from_minus_1.mul_(eps).add_(1).to(dtype);
}

}  // namespace megatron::kernels
