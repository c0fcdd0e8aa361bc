#pragma once
#include <array>
#include <string>

#include "megatron/base/error.h"

namespace megatron::data {

/// A part of the data holds nothing that samples can be made of.
struct EmptyPart : ConfigError {
  using ConfigError::ConfigError;
};

/// "969,30,1" -> the shares of training, validation and test, which sum to 1; missing ones are 0. Commas, slashes and
/// spaces separate them. Throws ConfigError for a text without one to three decimal shares >= 0, not all 0.
std::array<double, 3> split_shares(const std::string& split);

}  // namespace megatron::data
