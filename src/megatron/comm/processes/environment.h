#pragma once
#include "megatron/base/machine/environment.h"
#include "megatron/base/ranks/launched_rank.h"

// What a launcher has said of the ranks, for those who start or join them.
namespace megatron::comm {

using megatron::Environment;
using megatron::environment_of;
using megatron::LaunchedRank;
using megatron::place_from;
using megatron::process_environment;

}  // namespace megatron::comm
