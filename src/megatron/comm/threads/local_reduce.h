#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// out[i] = in[0][i] (op) in[1][i] (op) … in that order, for i in [begin, end), written to each of `outs`; an output
/// may be one of the inputs. Half types are computed in float and rounded once (to nearest even). Max returns NaN where
/// an input is NaN. The instruction set is chosen at run time and does not change the result.
void reduce_in_order(at::ScalarType dtype, ReduceOp op, const std::vector<const void*>& in,
                     const std::vector<void*>& outs, std::int64_t begin, std::int64_t end);

/// Whether reduce_in_order knows the type: the real number types and bool (Sum: or).
bool can_reduce(at::ScalarType dtype);

}  // namespace megatron::comm
