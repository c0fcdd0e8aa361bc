#pragma once
#include <cstdint>

#include "megatron/kernels/dropout.h"
#include "megatron/plan/ranks/sequence_share.h"

namespace megatron::parallel {

/// Sets where in the sequence the rows of `dropout` are: they begin at its position_offset among the `rows` that a rank
/// with this share of each sequence has.
void place_rows(kernels::Dropout& dropout, const plan::SequenceShare& share, std::int64_t rows);

}  // namespace megatron::parallel
