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

/// Elements that a rank sends in one pass of a layer: of keys and values to all other ranks, or its parts of heads; of
/// its own attention and, in a T5's decoder, of cross attention.
std::int64_t exchanged_elements(const config::RunConfig& config, const LayerSpec& layer, SequenceExchange exchange);

/// Bytes of keys and values of whole sequences, and of their gradients, that a rank holds while one layer computes
/// attention, of a T5 those of the longer stack: three times those of a microbatch where they are gathered (backward
/// has them, their gradients by position and these by rank); 0 where a rank holds no more than its share of a layer at
/// a time, and where cp is 1. MemoryPlan does not count them: they are an operator's, and the only ones that cp does
/// not divide.
std::int64_t gathered_bytes(const config::RunConfig& config, const ModelShape& shape);

/// Bytes that exchanges move through a rank's own memory in a layer's passes, read and written, in addition to what
/// attention itself moves.
struct MovedBytes {
  double forward = 0, backward = 0;
};
/// Of each attention with t tokens of a microbatch on each of n ranks, those of an encoder where cross attention has
/// its keys, q = t x query width, k = t x width of keys and values together, in elements of e bytes, w = max(e, 4), v =
/// n + 1/2 (each row of a rank meets so many pieces of keys; 2n where attention is not causal):
///   AllGather  forward ((2 + 2n) k + 2 q) e: put together, put in order; outputs of both pieces put together. Backward
///              (4 + 6.5n) k e: keys and values again, gradients set to 0, added for the second piece (half of them;
///              all where attention is not causal: 8n), put in the order of ranks, copied.
///   AllToAll   forward (6 (q + k) + 4 q) e: three copies of what goes, two of the outputs; backward twice that, and
///              (8 q) e of the outputs again.
///   Ring       forward q (v (6w + e) + 2w + e) + 2 k e: outputs are merged in float32 or wider. Backward
///              (q + k) (v (2w + e) + 2w + e) + k (2e + (4n - 4) w): sums of gradients, of keys and values on their
///              way.
MovedBytes moved_bytes(const config::RunConfig& config, const LayerSpec& layer, SequenceExchange exchange);

}  // namespace megatron::plan
