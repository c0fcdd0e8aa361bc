#pragma once
#include <string>
#include <vector>

#include "megatron/comm/rendezvous.h"

namespace megatron::comm {

/// What one launched rank of these tests does; the exit code of its process.
int as_rank(const std::string& name, const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace megatron::comm
