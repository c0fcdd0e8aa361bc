#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

// Softmax cross entropy over logits whose columns are split over ranks: the per-rank pieces, between which the caller
// all-reduces [n]-sized vectors. logits [n, v] (this rank's columns, overwritten by the second call), labels [n] int64
// in the full vocabulary, column j of this rank is token vocab_begin + j. Columns at or past `vocab_end` are padding:
// they never take part. Logits of bf16 and fp16 give pieces in float32 and take logsumexp and scale in float32.
namespace megatron::kernels {

struct VocabRange {
  std::int64_t begin = 0;  ///< token of column 0
  std::int64_t end = 0;    ///< first token that is not in the vocabulary (padding), or begin + v
  std::int64_t vocab = 0;  ///< tokens of the whole vocabulary, for label smoothing
};

struct SoftmaxPieces {
  at::Tensor max;      ///< [n] largest logit of this rank's columns
  at::Tensor sum_exp;  ///< [n] sum of exp(logit - max)
  at::Tensor target;   ///< [n] the label's logit where this rank holds it, else 0
  at::Tensor sum;      ///< [n] sum of the logits; defined only with label smoothing
};
SoftmaxPieces softmax_pieces(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             bool smoothing);

/// Overwrites logits with scale[i] * d loss_i / d logits, with loss_i = (1-e) * -log p(label) + e * mean_j(-log p_j).
/// logsumexp, scale [n]. A label outside [0, vocab) must have scale 0.
void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             const at::Tensor& logsumexp, const at::Tensor& scale, double label_smoothing);

}  // namespace megatron::kernels
