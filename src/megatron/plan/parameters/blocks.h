#pragma once
#include <cstdint>

#include "megatron/base/files/gguf.h"
#include "megatron/plan/parameters/parameters.h"

// Weights held in 8 or 4 bits, of which 32 side by side share a scale (kernels/quantized/blocks.h).
namespace megatron::plan {

/// Numbers of a row that share a scale, and rows that lie side by side in memory: their number is rounded up to that.
inline constexpr std::int64_t kBlockNumbers = 32, kBlockRows = 16;

/// How a parameter is held where the weights are held as `weights`, Q8_0, Q4_0 or Q4_1: the matrices of the vocabulary
/// as Q8_0 always, since each token's logits have their errors.
GgufType block_type(const ParameterSpec& spec, GgufType weights);

/// Whether a parameter can be held so: the matrix of a linear layer, of the word embedding or of the output layer,
/// whose rows are whole blocks. Judged by the full shape, so that the weights of every layout are the same.
bool fits_blocks(const ParameterSpec& spec);

/// Whether this rank's part of it is whole blocks too.
bool part_fits_blocks(const ParameterSpec& spec);

/// Bytes that this rank's part takes then, held as `type`.
std::int64_t block_bytes(const ParameterSpec& spec, GgufType type);

}  // namespace megatron::plan
