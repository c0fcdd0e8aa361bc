#pragma once
#include "megatron/kernels/phases/cross_entropy.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// Cross entropy over a slice of the vocabulary.
template <class Driver>
struct LossOperators {
  static kernels::SoftmaxPieces softmax_pieces(const at::Tensor& logits, const at::Tensor& labels,
                                               const VocabRange& range, bool smoothing) {
    if (!takes(logits) || !of_type(logits, labels, at::kLong))
      return reference::softmax_pieces(logits, labels, range, smoothing);
    const auto wide = logits.options().dtype(compute_dtype(logits));
    const std::int64_t n = logits.size(0);
    kernels::SoftmaxPieces pieces{at::empty({n}, wide), at::empty({n}, wide), at::empty({n}, wide), {}};
    if (smoothing) pieces.sum = at::empty({n}, wide);
    with_type(logits.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      Driver::template launch<SoftmaxPieces<T>>({.logits = const_pointer<T>(logits),
                                                 .labels = const_pointer<std::int64_t>(labels),
                                                 .max = pointer<C>(pieces.max),
                                                 .sum_exp = pointer<C>(pieces.sum_exp),
                                                 .target = pointer<C>(pieces.target),
                                                 .sum = pointer<C>(pieces.sum),
                                                 .v = logits.size(1),
                                                 .columns = real_columns(logits, range),
                                                 .begin = range.begin},
                                                n);
    });
    return pieces;
  }

  static void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                      const at::Tensor& logsumexp, const at::Tensor& scale, double label_smoothing) {
    const at::ScalarType wide = compute_dtype(logits);
    if (!takes(logits) || !of_type(logits, labels, at::kLong) || !of_type(logits, logsumexp, wide) ||
        !of_type(logits, scale, wide))
      return reference::cross_entropy_gradient_(logits, labels, range, logsumexp, scale, label_smoothing);
    const std::int64_t n = logits.size(0), v = logits.size(1);
    with_type(logits.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      using Kernel = CrossEntropyGradient<T>;
      Driver::template launch<Kernel>(
          {.logits = pointer<T>(logits),
           .labels = const_pointer<std::int64_t>(labels),
           .logsumexp = const_pointer<C>(logsumexp),
           .scale = const_pointer<C>(scale),
           .rows = n,
           .v = v,
           .columns = real_columns(logits, range),
           .begin = range.begin,
           .chunks = Divisor(chunks_of<T>(v)),
           .smoothing = static_cast<C>(label_smoothing),
           .uniform = static_cast<C>(label_smoothing / static_cast<double>(std::max<std::int64_t>(range.vocab, 1)))},
          blocks_for<Kernel>(n * chunks_of<T>(v)));
    });
  }

 private:
  /// Columns that are tokens, not padding.
  static std::int64_t real_columns(const at::Tensor& logits, const VocabRange& range) {
    return std::clamp<std::int64_t>(range.end - range.begin, 0, logits.size(1));
  }
};

}  // namespace megatron::kernels::phases
