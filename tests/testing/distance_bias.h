#pragma once
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

// A T5's bias by distance, written out for the dense model.
namespace megatron::testing {

/// Bucket of a key `far` after its query, of `own` in all.
inline std::int64_t distance_bucket(std::int64_t far, bool both_ways, std::int64_t own, std::int64_t max_distance) {
  std::int64_t first = 0;
  if (both_ways) {
    own /= 2;
    if (far > 0) first = own;
  } else if (far > 0) {
    far = 0;
  }
  const auto away = static_cast<double>(std::abs(far)), exact = std::floor(static_cast<double>(own) / 2);
  if (away < exact) return first + std::abs(far);
  const double share = std::log(away / exact) / std::log(static_cast<double>(max_distance) / exact);
  const auto later = static_cast<std::int64_t>(share * (static_cast<double>(own) - exact));
  return first + std::min(own / 2 + later, own - 1);
}

/// table [buckets, n] -> [n, s, s].
inline at::Tensor distance_bias(const at::Tensor& table, std::int64_t s, bool both_ways, std::int64_t max_distance) {
  std::vector<at::Tensor> all;
  for (std::int64_t query = 0; query < s; ++query)
    for (std::int64_t key = 0; key < s; ++key)
      all.push_back(table[distance_bucket(key - query, both_ways, table.size(0), max_distance)]);
  return at::stack(all, 1).view({-1, s, s});
}

}  // namespace megatron::testing
