#pragma once
#include <cstdint>

#include "megatron/config/run_config.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/ranks/sequence_share.h"

namespace megatron::plan {

/// How ranks attend: the exchange that parallel.cp_comm_type names. auto: AllToAll where the heads of a rank divide, as
/// it sends each element once; else AllGather, unless the keys and values of a whole sequence were more than what a
/// layer keeps of the rank's own tokens: then Ring, which holds a share of them at a time.
SequenceExchange sequence_exchange(const config::RunConfig& config, const ModelShape& shape);

/// Elements that a rank sends in one pass of a layer: of keys and values to all other ranks, or its parts of heads.
std::int64_t exchanged_elements(const config::RunConfig& config, const SelfAttention& attention,
                                SequenceExchange exchange);

}  // namespace megatron::plan
