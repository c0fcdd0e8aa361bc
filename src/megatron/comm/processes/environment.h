#pragma once
#include "megatron/base/machine/environment.h"
#include "megatron/comm/processes/rendezvous.h"

namespace megatron::comm {

using megatron::process_environment;  // what place_from() reads

}  // namespace megatron::comm
