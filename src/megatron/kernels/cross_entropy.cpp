#include "megatron/kernels/cross_entropy.h"

#include <c10/core/GradMode.h>

#include "megatron/kernels/reference.h"

namespace megatron::kernels {

SoftmaxPieces softmax_pieces(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             bool smoothing) {
  const c10::NoGradGuard no_grad;
  return reference::softmax_pieces(logits, labels, range, smoothing);
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             const at::Tensor& logsumexp, const at::Tensor& scale, double label_smoothing) {
  const c10::NoGradGuard no_grad;
  reference::cross_entropy_gradient_(logits, labels, range, logsumexp, scale, label_smoothing);
}

}  // namespace megatron::kernels
