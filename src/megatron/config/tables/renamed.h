#pragma once
#include <string>

namespace megatron::config {

/// An option's value as recipes of earlier versions have it, in today's words.
struct Renamed {
  std::string path, value;
};

/// The option that was once called `path`, with what stands for `value` of it; an empty path where there was none, an
/// empty value where it had no such value. Recipes that checkpoints hold stay readable by this.
Renamed renamed(const std::string& path, const std::string& value);

}  // namespace megatron::config
