#include "megatron/plan/parameters/blocks.h"

#include <vector>

namespace megatron::plan {

GgufType block_type(const ParameterSpec& spec, GgufType weights) {
  return spec.is_word_matrix() ? GgufType::Q8_0 : weights;
}

bool fits_blocks(const ParameterSpec& spec) {
  return (spec.is_layer_matrix() || spec.is_word_matrix()) && spec.shape[1] % kBlockNumbers == 0;
}

bool part_fits_blocks(const ParameterSpec& spec) { return spec.local_shape().back() % kBlockNumbers == 0; }

std::int64_t block_bytes(const ParameterSpec& spec, GgufType type) {
  const std::vector<std::int64_t> shape = spec.local_shape();
  const std::int64_t rows = (shape[0] + kBlockRows - 1) / kBlockRows * kBlockRows;
  return rows * (shape[1] / kBlockNumbers) * gguf_block(type).bytes;
}

}  // namespace megatron::plan
