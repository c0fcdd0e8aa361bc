#pragma once
#include "megatron/comm/processes/rendezvous.h"

namespace megatron::comm {

/// This process's environment, as data: what place_from() reads.
Environment process_environment();

}  // namespace megatron::comm
