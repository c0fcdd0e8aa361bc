#include "megatron/kernels/cross_entropy.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

/// Columns of this rank that are tokens, not padding.
std::int64_t real_columns(const at::Tensor& logits, const VocabRange& range) {
  return std::clamp<std::int64_t>(range.end - range.begin, 0, logits.size(1));
}

bool fast_labels(const at::Tensor& labels) {
  return labels.is_cpu() && labels.is_contiguous() && labels.scalar_type() == at::kLong;
}

}  // namespace

namespace cpu {

SoftmaxPieces softmax_pieces(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             bool smoothing) {
  const std::int64_t stride = logits.size(1), columns = real_columns(logits, range);
  if (!cpu::fast_as(logits.scalar_type(), logits) || !fast_labels(labels) || columns == 0) {
    return reference::softmax_pieces(logits, labels, range, smoothing);
  }
  const auto vector = [&] { return at::empty(labels.sizes(), logits.options().dtype(at::kFloat)); };
  const SoftmaxPieces pieces{vector(), vector(), vector(), smoothing ? vector() : at::Tensor()};
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  float *max = pieces.max.mutable_data_ptr<float>(), *sum_exp = pieces.sum_exp.mutable_data_ptr<float>();
  float *target = pieces.target.mutable_data_ptr<float>(),
        *sum = smoothing ? pieces.sum.mutable_data_ptr<float>() : nullptr;
  cpu::with_storage(logits.scalar_type(), [&]<class T>(T) {
    const auto kernels = cpu::softmax_kernels<T>();
    const T* data = logits.const_data_ptr<T>();
    cpu::for_each_block(logits.size(0), [&](std::int64_t i, int) {
      const T* row = data + i * stride;
      const cpu::SoftmaxRow softmax = kernels.pieces(row, static_cast<std::size_t>(columns));
      const std::int64_t column = label[i] - range.begin;
      max[i] = softmax.max;
      sum_exp[i] = static_cast<float>(softmax.sum_exp);
      target[i] = column >= 0 && column < columns ? static_cast<float>(row[column]) : 0.0f;
      if (sum != nullptr) sum[i] = static_cast<float>(softmax.sum);
    });
  });
  return pieces;
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             const at::Tensor& logsumexp, const at::Tensor& scale, double label_smoothing) {
  const std::int64_t stride = logits.size(1), columns = real_columns(logits, range);
  if (!cpu::fast_as(logits.scalar_type(), logits) || !cpu::all_fast(logsumexp, scale) || !fast_labels(labels)) {
    return reference::cross_entropy_gradient_(logits, labels, range, logsumexp, scale, label_smoothing);
  }
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  const float *lse = logsumexp.const_data_ptr<float>(), *factor = scale.const_data_ptr<float>();
  const auto smooth =
      label_smoothing > 0 ? static_cast<float>(label_smoothing / static_cast<double>(range.vocab)) : 0.0f;
  const auto hit = static_cast<float>(1 - label_smoothing);
  const auto gradient_of_one = cpu::softmax_kernels<float>().gradient;
  cpu::with_storage(logits.scalar_type(), [&]<class T>(T) {
    const auto kernels = cpu::softmax_kernels<T>();
    T* data = logits.mutable_data_ptr<T>();
    cpu::for_each_block(logits.size(0), [&](std::int64_t i, int) {
      T* row = data + i * stride;
      const std::int64_t column = label[i] - range.begin;
      const bool here = column >= 0 && column < columns;
      float of_label = here ? static_cast<float>(row[column]) : 0.0f;  // rounded once, after the hit
      gradient_of_one(&of_label, 1, lse[i], factor[i], smooth);
      kernels.gradient(row, static_cast<std::size_t>(columns), lse[i], factor[i], smooth);
      std::fill(row + columns, row + stride, T(0.0f));
      if (here) row[column] = static_cast<T>(of_label - hit * factor[i]);
    });
  });
}

}  // namespace cpu
}  // namespace megatron::kernels
