#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/normalization.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <cmath>

#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/elementwise/vector_body.h"
#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// x * mask for elements [i, i + lanes) of the row.
HWY_INLINE F dropped(F x, const RowDropout& dropout, std::size_t i, std::size_t lanes) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto words = lanes == hn::Lanes(d) ? hn::LoadU(du, dropout.words + i)
                                           : hn::MaskedLoad(hn::FirstN(du, lanes), du, dropout.words + i);
  const auto drop = hn::RebindMask(d, hn::Lt(words, hn::Set(du, dropout.threshold)));
  return hn::IfThenZeroElse(drop, hn::Mul(x, hn::Set(d, dropout.keep_scale)));
}

template <class T>
void add_branch(T* x, const T* bias, const T* residual, std::size_t count, const RowDropout& dropout) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    F v = load(x + i, lanes);
    if (bias != nullptr) v = hn::Add(v, load(bias + i, lanes));
    if (dropout.words != nullptr) v = dropped(v, dropout, i, lanes);
    store(hn::Add(v, load(residual + i, lanes)), x + i, lanes);
  });
}

template <class T>
void drop(const T* x, T* y, std::size_t count, const RowDropout& dropout) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         VECTOR_BODY { store(dropped(load(x + i, lanes), dropout, i, lanes), y + i, lanes); });
}

template <class T>
RowStatistics norm(const T* x, const T* weight, const T* bias, T* y, std::size_t count, float eps) {
  const Floats d;
  const F sum = sum_of_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY { return load(x + i, lanes); });
  const float mean = sum_of_lanes(sum) / static_cast<float>(count);
  const F centre = hn::Set(d, mean);
  const F squares = sum_of_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    F distance = hn::Sub(load(x + i, lanes), centre);
    if (lanes != hn::Lanes(d)) distance = hn::IfThenElseZero(hn::FirstN(d, lanes), distance);
    return hn::Mul(distance, distance);
  });
  const float rstd = 1.0f / std::sqrt(sum_of_lanes(squares) / static_cast<float>(count) + eps);
  const F factor = hn::Set(d, rstd);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F normed = hn::Mul(hn::Sub(load(x + i, lanes), centre), factor);
    store(hn::MulAdd(normed, load(weight + i, lanes), load(bias + i, lanes)), y + i, lanes);
  });
  return {mean, rstd};
}

template <class T>
float root_mean_square_norm(const T* x, const T* weight, T* y, std::size_t count, float eps) {
  const Floats d;
  const F squares = sum_of_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F v = load(x + i, lanes);
    return hn::Mul(v, v);
  });
  const float rstd = 1.0f / std::sqrt(sum_of_lanes(squares) / static_cast<float>(count) + eps);
  const F factor = hn::Set(d, rstd);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    store(hn::Mul(hn::Mul(load(x + i, lanes), factor), load(weight + i, lanes)), y + i, lanes);
  });
  return rstd;
}

/// The backward pass of both norms; an RMS norm has mean 0 and neither a bias nor the centring's term.
template <bool kCentred, class T>
HWY_INLINE void backward_of_norm(const T* dy, const T* x, RowStatistics statistics, const T* weight,
                                 const T* residual_gradient, T* dx, float* grad_weight, float* grad_bias,
                                 std::size_t count) {
  const Floats d;
  const F mean = hn::Set(d, statistics.mean), rstd = hn::Set(d, statistics.rstd);
  const auto normed_at = [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F v = load(x + i, lanes);
    return hn::Mul(kCentred ? hn::Sub(v, mean) : v, rstd);
  };
  F sum = hn::Zero(d), sum_normed = hn::Zero(d);
  // Behind the last element dy and weight load as zeros, so the sums are right without a mask.
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F normed = normed_at(i, lanes), g = load(dy + i, lanes);
    const F gw = hn::Mul(g, load(weight + i, lanes));
    sum_normed = hn::MulAdd(gw, normed, sum_normed);
    store(hn::MulAdd(g, normed, load(grad_weight + i, lanes)), grad_weight + i, lanes);
    if constexpr (kCentred) {
      sum = hn::Add(sum, gw);
      store(hn::Add(g, load(grad_bias + i, lanes)), grad_bias + i, lanes);
    }
  });
  const F a = hn::Set(d, kCentred ? sum_of_lanes(sum) / static_cast<float>(count) : 0.0f);
  const F c = hn::Set(d, sum_of_lanes(sum_normed) / static_cast<float>(count));
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F gw = hn::Mul(load(dy + i, lanes), load(weight + i, lanes));
    F g = hn::Mul(rstd, hn::NegMulAdd(normed_at(i, lanes), c, kCentred ? hn::Sub(gw, a) : gw));
    if (residual_gradient != nullptr) g = hn::Add(g, load(residual_gradient + i, lanes));
    store(g, dx + i, lanes);
  });
}

template <class T>
void norm_backward(const T* dy, const T* x, RowStatistics statistics, const T* weight, const T* residual_gradient,
                   T* dx, float* grad_weight, float* grad_bias, std::size_t count) {
  backward_of_norm<true>(dy, x, statistics, weight, residual_gradient, dx, grad_weight, grad_bias, count);
}

template <class T>
void root_mean_square_norm_backward(const T* dy, const T* x, float rstd, const T* weight, const T* residual_gradient,
                                    T* dx, float* grad_weight, std::size_t count) {
  backward_of_norm<false>(dy, x, {0, rstd}, weight, residual_gradient, dx, grad_weight, nullptr, count);
}

template <class T>
void accumulate(float* to, const T* from, std::size_t count) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         VECTOR_BODY { store(hn::Add(load(to + i, lanes), load(from + i, lanes)), to + i, lanes); });
}

/// Four rows at a time: `to` is read and written once for all of them.
template <class T>
void accumulate_rows(float* to, const T* from, std::size_t rows, std::size_t count) {
  std::size_t r = 0;
  for (; r + 4 <= rows; r += 4, from += 4 * count) {
    for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
      const F first = hn::Add(load(from + i, lanes), load(from + count + i, lanes));
      const F second = hn::Add(load(from + 2 * count + i, lanes), load(from + 3 * count + i, lanes));
      store(hn::Add(load(to + i, lanes), hn::Add(first, second)), to + i, lanes);
    });
  }
  for (; r < rows; ++r, from += count) accumulate(to, from, count);
}

template <class T>
void weighted_sum(const T* const* rows, const float* weights, std::size_t num_rows, T* to, std::size_t count) {
  const Floats d;
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    F sum = hn::Zero(d);
    for (std::size_t r = 0; r < num_rows; ++r) sum = hn::MulAdd(hn::Set(d, weights[r]), load(rows[r] + i, lanes), sum);
    store(sum, to + i, lanes);
  });
}

template <class T>
RowKernels<T> kernels() {
  return {add_branch<T>,
          drop<T>,
          norm<T>,
          norm_backward<T>,
          root_mean_square_norm<T>,
          root_mean_square_norm_backward<T>,
          accumulate<T>,
          accumulate_rows<T>,
          weighted_sum<T>};
}
RowKernels<float> of_float() { return kernels<float>(); }
RowKernels<c10::BFloat16> of_bf16() { return kernels<c10::BFloat16>(); }
RowKernels<c10::Half> of_fp16() { return kernels<c10::Half>(); }

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(of_float);
HWY_EXPORT(of_bf16);
HWY_EXPORT(of_fp16);

template <>
RowKernels<float> row_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_float)();
}
template <>
RowKernels<c10::BFloat16> row_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_bf16)();
}
template <>
RowKernels<c10::Half> row_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_fp16)();
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
