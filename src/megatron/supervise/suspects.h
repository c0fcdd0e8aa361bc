#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace megatron::supervise {

/// What a rank has computed of a step: a checksum of the gradients of one part of it. Whoever computes the same part
/// must get the same checksum.
struct PartResult {
  int rank = 0;  ///< that has computed it
  int part = 0;  ///< the rank whose part it is
  std::uint64_t checksum = 0;
};

/// A rank that may compute wrongly.
struct Suspect {
  int rank = 0;
  int wrong = 0, results = 0;  ///< so many of its results
  bool persistent = false;     ///< more than one, or the one that is in use: else a transient error
  bool certain = false;        ///< else it or another uncertain one: two ranks disagree, and no third has computed it
  std::uint64_t checksum = 0;  ///< its first wrong one, and what it should have been, where that is known
  std::optional<std::uint64_t> expected = {};
};

/// Whether all that have computed the same part agree.
bool agree(std::span<const PartResult> results);

/// Who computes wrongly, ascending by rank; none where all agree. Right is what two ranks have got and no other two
/// have got otherwise; of a part that one rank alone has computed, what it got more often than not. A rank that gets
/// one thing and then another is wrong in any case. The last result of each part is the one in use.
std::vector<Suspect> suspects_of(std::span<const PartResult> results);

}  // namespace megatron::supervise
