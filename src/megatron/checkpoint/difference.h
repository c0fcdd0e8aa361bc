#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace megatron::checkpoint {

/// How a tensor differs between two checkpoints.
struct TensorDifference {
  std::string name;
  std::string what;             ///< "only in the first", "only in the second", "shape [2] and [3]"; else empty:
  std::int64_t elements = 0;    ///< that differ by more than was allowed, or are NaN in one of them alone
  double largest = 0;           ///< |a - b|
  double largest_relative = 0;  ///< |a - b| / max(|a|, |b|)
  std::int64_t at = 0;          ///< where the largest is, in row-major order
};

/// The tensors that differ by more than `tolerance` somewhere, compared as numbers (of any floating-point dtypes); by
/// name. Holds a few MiB at a time. Throws Damage. `compared`, if given: how many tensors both have.
std::vector<TensorDifference> differences(const std::filesystem::path& first, const std::filesystem::path& second,
                                          double tolerance, std::int64_t* compared = nullptr);

}  // namespace megatron::checkpoint
