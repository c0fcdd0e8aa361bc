#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace megatron::plan {

/// A fault that a test asks for: guard.inject_faults.
struct Fault {
  enum class Kind : std::uint8_t { Nan, Spike, Exit, Hang, Flip, Stuck };
  Kind kind = Kind::Nan;
  std::int64_t iteration = 0;  ///< from 1
  int rank = 0;                ///< of the world; of Nan and Spike none, as the loss is every rank's
  bool operator==(const Fault&) const = default;
};

/// Reads KIND:ITERATION and KIND:ITERATION:RANK, one fault each. Throws ConfigError for another text.
std::vector<Fault> faults_of(const std::vector<std::string>& texts);

}  // namespace megatron::plan
