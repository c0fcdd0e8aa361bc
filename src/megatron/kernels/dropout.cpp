#include "megatron/kernels/dropout.h"

#include "megatron/kernels/reference.h"

namespace megatron::kernels {

at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h, at::ScalarType dtype,
                        at::Device device) {
  return reference::dropout_mask(dropout, s, b, h, dtype, device);
}

at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n, std::int64_t head_offset,
                                  std::int64_t queries, std::int64_t keys, at::ScalarType dtype, at::Device device) {
  return reference::attention_dropout_mask(dropout, b, n, head_offset, queries, keys, dtype, device);
}

}  // namespace megatron::kernels
