#pragma once
#include <cstdint>

#include "megatron/plan/parameters/parameters.h"

// Weights held in 8 bits, of which 32 side by side share a scale (kernels/quantized/q8_0.h).
namespace megatron::plan {

/// Numbers of a row that share a scale.
inline constexpr std::int64_t kBlockNumbers = 32;

/// Whether a parameter can be held so: the matrix of a linear layer, of the word embedding or of the output layer,
/// whose rows are whole blocks. Judged by the full shape, so that the weights of every layout are the same.
bool fits_blocks(const ParameterSpec& spec);

/// Whether this rank's part of it is whole blocks too.
bool part_fits_blocks(const ParameterSpec& spec);

/// Bytes that this rank's part takes then.
std::int64_t block_bytes(const ParameterSpec& spec);

}  // namespace megatron::plan
