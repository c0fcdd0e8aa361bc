#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/comm/processes/environment.h"

namespace megatron::comm {

/// What one launched rank of these tests does; the exit code of its process.
int as_rank(const std::string& name, const std::vector<std::string>& arguments, const Environment& environment);

/// NVIDIA GPUs that this machine shows.
inline int num_gpus() {
  int n = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(n))) ++n;
  return n;
}

}  // namespace megatron::comm
