#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "megatron/model/gpt.h"

namespace megatron::train {

/// Samples whose tokens are random words of (seed, sample id, position): a task of every size without a file, for
/// benchmarks and tests. Uniform over the vocabulary; labels are the next tokens.
model::Batch synthetic_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                             std::uint64_t seed, at::Device device);

}  // namespace megatron::train
