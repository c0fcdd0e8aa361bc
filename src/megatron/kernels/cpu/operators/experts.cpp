#include "megatron/kernels/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels::cpu {
namespace {

/// Calls run(row, thread) for each of `rows` rows of `width` elements, some thousand elements at a time.
template <class Run>
void by_wide_rows(std::int64_t rows, std::int64_t width, const Run& run) {
  const std::int64_t together = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(width, 1));
  for_each_block((rows + together - 1) / together, [&](std::int64_t i, int thread) {
    for (std::int64_t row = i * together; row < std::min(rows, (i + 1) * together); ++row) run(row, thread);
  });
}

}  // namespace

WeightedGradient weighted_activation_backward(const at::Tensor& dy, const at::Tensor& u, const at::Tensor& weights,
                                              Activation form, bool gated) {
  if (!fast_as(u.scalar_type(), dy, u) || !fast_or_absent(weights))
    return reference::weighted_activation_backward(dy, u, weights, form, gated);
  WeightedGradient out{.du = at::empty_like(u),
                       .y = at::empty_like(dy),
                       .weights = weights.defined() ? at::empty_like(weights) : at::Tensor()};
  const std::int64_t features = dy.size(1), width = u.size(1);
  const float* const w = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  float* const dw = weights.defined() ? out.weights.mutable_data_ptr<float>() : nullptr;
  with_storage(u.scalar_type(), [&]<class T>(T) {
    const ActivationKernels<T> kernels = activation_kernels<T>(form);
    const auto backward = gated ? kernels.gated_weighted_backward : kernels.weighted_backward;
    const T *dy_data = dy.const_data_ptr<T>(), *u_data = u.const_data_ptr<T>();
    T *du_data = out.du.mutable_data_ptr<T>(), *y_data = out.y.mutable_data_ptr<T>();
    by_wide_rows(dy.size(0), width, [&](std::int64_t row, int) {
      const float sum =
          backward(dy_data + row * features, u_data + row * width, w == nullptr ? 1.0f : w[row], du_data + row * width,
                   y_data + row * features, static_cast<std::size_t>(features), form);
      if (dw != nullptr) dw[row] = sum;
    });
  });
  return out;
}

at::Tensor combined_rows(const at::Tensor& rows, const at::Tensor& index, const at::Tensor& weights) {
  if (!fast_as(rows.scalar_type(), rows) || !plain(at::kLong, index) || !fast_or_absent(weights))
    return reference::combined_rows(rows, index, weights);
  const std::int64_t tokens = index.size(0), top_k = index.size(1), columns = rows.size(1);
  const at::Tensor out = at::empty({tokens, columns}, rows.options());
  const std::int64_t* const at_row = index.const_data_ptr<std::int64_t>();
  const float* const w = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  with_storage(rows.scalar_type(), [&]<class T>(T) {
    const auto sum = row_kernels<T>().weighted_sum;
    const T* const from = rows.const_data_ptr<T>();
    T* const to = out.mutable_data_ptr<T>();
    const auto each = static_cast<std::size_t>(top_k), threads = static_cast<std::size_t>(num_threads());
    std::vector<const T*> all_sources(threads * each);
    std::vector<float> all_factors(threads * each);
    by_wide_rows(tokens, columns * (top_k + 1), [&](std::int64_t token, int thread) {
      const T** const sources = all_sources.data() + static_cast<std::size_t>(thread) * each;
      float* const factors = all_factors.data() + static_cast<std::size_t>(thread) * each;
      std::size_t count = 0;
      for (std::int64_t j = token * top_k; j < (token + 1) * top_k; ++j) {
        if (at_row[j] < 0) continue;
        sources[count] = from + at_row[j] * columns;
        factors[count++] = w == nullptr ? 1.0f : w[j];
      }
      sum(sources, factors, count, to + token * columns, static_cast<std::size_t>(columns));
    });
  });
  return out;
}

}  // namespace megatron::kernels::cpu
