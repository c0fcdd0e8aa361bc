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
  std::int64_t elements = 0;    ///< that differ by more than was allowed
  std::int64_t not_finite = 0;  ///< of them: NaN or infinite in one or both, whatever was allowed
  double largest = 0;           ///< |a - b|, of those that are finite in both, as what follows
  double largest_relative = 0;  ///< |a - b| / max(|a|, |b|)
  std::int64_t at = 0;          ///< where the largest is, in row-major order; without one: the first that differs
};

/// The tensors that differ by more than `tolerance` somewhere, compared as numbers (of any floating-point dtypes); by
/// name. Holds a few MiB at a time. Throws Unreadable. `compared`, if given: how many tensors both have.
std::vector<TensorDifference> differences(const std::filesystem::path& first, const std::filesystem::path& second,
                                          double tolerance, std::int64_t* compared = nullptr);

}  // namespace megatron::checkpoint
