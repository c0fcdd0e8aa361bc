#include "megatron/kernels/embedding.h"

#include <c10/core/GradMode.h>

#include "megatron/kernels/reference.h"

namespace megatron::kernels {

at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin) {
  const c10::NoGradGuard no_grad;
  return reference::embedding(tokens, weight, begin);
}

void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin) {
  const c10::NoGradGuard no_grad;
  reference::embedding_backward(grad_weight, tokens, dy, begin);
}

}  // namespace megatron::kernels
