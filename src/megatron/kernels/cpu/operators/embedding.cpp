#include "megatron/kernels/embedding.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

bool fast_tokens(const at::Tensor& tokens) { return cpu::plain(at::kLong, tokens); }

}  // namespace

namespace cpu {

at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin) {
  if (!fast_tokens(tokens) || !cpu::plain(weight.scalar_type(), weight) || !cpu::enabled()) {
    return reference::embedding(tokens, weight, begin);
  }
  constexpr std::int64_t kBlock = 64;  // rows that one thread takes at a time
  at::Tensor out = at::empty({tokens.size(0), tokens.size(1), weight.size(1)}, weight.options());
  const std::int64_t rows = weight.size(0), count = tokens.numel();
  const std::size_t bytes = static_cast<std::size_t>(weight.size(1)) * weight.element_size();
  const auto* from = static_cast<const std::byte*>(weight.const_data_ptr());
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::int64_t* token = tokens.const_data_ptr<std::int64_t>();
  cpu::for_each_block((count + kBlock - 1) / kBlock, [&](std::int64_t block, int) {
    for (std::int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
      const std::int64_t row = token[i] - begin;
      std::byte* out_row = to + static_cast<std::size_t>(i) * bytes;
      if (row >= 0 && row < rows) {
        std::memcpy(out_row, from + static_cast<std::size_t>(row) * bytes, bytes);
      } else {
        std::memset(out_row, 0, bytes);  // 0.0 in every floating dtype
      }
    }
  });
  return out;
}

void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin) {
  if (!fast_tokens(tokens) || !cpu::fast(grad_weight) || !cpu::fast_as(dy.scalar_type(), dy)) {
    return reference::embedding_backward(grad_weight, tokens, dy, begin);
  }
  const std::int64_t rows = grad_weight.size(0), features = grad_weight.size(1);
  float* to = grad_weight.mutable_data_ptr<float>();
  const std::int64_t* token = tokens.const_data_ptr<std::int64_t>();
  cpu::with_storage(dy.scalar_type(), [&]<class T>(T) {
    const auto add = cpu::row_kernels<T>().add;
    const T* from = dy.const_data_ptr<T>();
    for (std::int64_t i = 0; i < tokens.numel(); ++i, from += features) {
      const std::int64_t row = token[i] - begin;
      if (row >= 0 && row < rows) add(to + row * features, from, static_cast<std::size_t>(features));
    }
  });
}

}  // namespace cpu
}  // namespace megatron::kernels
