#include "megatron/plan/parameters/blocks.h"

namespace megatron::plan {
namespace {

constexpr std::int64_t kScaleBytes = 2;

}  // namespace

bool fits_blocks(const ParameterSpec& spec) {
  return (spec.is_layer_matrix() || spec.is_word_matrix()) && spec.shape[1] % kBlockNumbers == 0;
}

bool part_fits_blocks(const ParameterSpec& spec) { return spec.local_shape().back() % kBlockNumbers == 0; }

std::int64_t block_bytes(const ParameterSpec& spec) {
  return spec.local_size() + spec.local_size() / kBlockNumbers * kScaleBytes;
}

}  // namespace megatron::plan
