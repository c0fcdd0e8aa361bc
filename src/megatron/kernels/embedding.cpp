#include "megatron/kernels/embedding.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

bool fast(const at::Tensor& tokens, const at::Tensor& a, const at::Tensor& b) {
  return tokens.is_cpu() && tokens.is_contiguous() && tokens.scalar_type() == at::kLong && cpu::all_fast(a, b);
}

}  // namespace

at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin) {
  const c10::NoGradGuard no_grad;
  if (!fast(tokens, weight, weight)) return reference::embedding(tokens, weight, begin);
  const std::int64_t rows = weight.size(0), features = weight.size(1);
  at::Tensor out = at::empty({tokens.size(0), tokens.size(1), features}, weight.options());
  const float* from = weight.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const std::int64_t* token = tokens.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i, to += features) {
    const std::int64_t row = token[i] - begin;
    if (row >= 0 && row < rows) {
      std::copy_n(from + row * features, features, to);
    } else {
      std::fill_n(to, features, 0.0f);
    }
  }
  return out;
}

void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin) {
  const c10::NoGradGuard no_grad;
  if (!fast(tokens, grad_weight, dy)) return reference::embedding_backward(grad_weight, tokens, dy, begin);
  const std::int64_t rows = grad_weight.size(0), features = grad_weight.size(1);
  const float* from = dy.const_data_ptr<float>();
  float* to = grad_weight.mutable_data_ptr<float>();
  const std::int64_t* token = tokens.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i, from += features) {
    const std::int64_t row = token[i] - begin;
    if (row >= 0 && row < rows) cpu::add_run(to + row * features, from, static_cast<std::size_t>(features));
  }
}

}  // namespace megatron::kernels
