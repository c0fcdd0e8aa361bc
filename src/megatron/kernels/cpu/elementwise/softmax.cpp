#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/softmax.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/elementwise/vector_body.h"
#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// `lanes` elements from p, minus infinity above: neither the maximum nor the sum of exp sees them.
template <class T>
HWY_INLINE F load_logits(const T* p, std::size_t lanes) {
  const Floats d;
  const F v = load(p, lanes);
  if (lanes == hn::Lanes(d)) return v;
  return hn::IfThenElse(hn::FirstN(d, lanes), v, hn::Set(d, -std::numeric_limits<float>::infinity()));
}

/// The largest of `count` logits, which may lose a NaN.
template <class T>
HWY_INLINE float largest_of(const T* logits, std::size_t count) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  F largest = hn::Set(d, -std::numeric_limits<float>::infinity()), others = largest;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    largest = hn::Max(largest, load(logits + i, lanes));
    others = hn::Max(others, load(logits + i + lanes, lanes));
  }
  for (; i < count; i += lanes) largest = hn::Max(largest, load_logits(logits + i, std::min(lanes, count - i)));
  return max_of_lanes(hn::Max(largest, others));
}

/// A running softmax over blocks, each of which is still in the first cache when its exponentials are summed; the next
/// one is asked for meanwhile.
template <class T>
SoftmaxRow pieces(const T* logits, std::size_t count) {
  constexpr std::size_t kBlock = 1024;  // elements summed in float32 before they join the float64 sum
  constexpr std::size_t kLine = 64 / sizeof(T);
  SoftmaxRow row{-std::numeric_limits<float>::infinity(), 0, 0};
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    const T* const block = logits + begin;
    const float largest = largest_of(block, size);
    if (largest > row.max) {
      row.sum_exp *= std::exp(static_cast<double>(row.max) - static_cast<double>(largest));
      row.max = largest;
    }
    for (std::size_t i = begin + kBlock; i < std::min(count, begin + 2 * kBlock); i += kLine) hwy::Prefetch(logits + i);
    // Where nothing counts so far, what is not minus infinity is NaN.
    const F max = hn::Set(Floats(), std::isinf(row.max) && row.max < 0 ? 0.0f : row.max);
    const F sum_exp = sum_of_vectors(size, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
      return exp_up_to_88(hn::Sub(load_logits(block + i, lanes), max));
    });
    const F sum =
        sum_of_vectors(size, [&](std::size_t i, std::size_t lanes) VECTOR_BODY { return load(block + i, lanes); });
    row.sum_exp += static_cast<double>(sum_of_lanes(sum_exp));
    row.sum += static_cast<double>(sum_of_lanes(sum));
  }
  return row;
}

template <class T>
void gradient(T* logits, std::size_t count, float logsumexp, float scale, float smooth) {
  const Floats d;
  const F shift = hn::Set(d, logsumexp), factor = hn::Set(d, scale), less = hn::Set(d, smooth);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    store(hn::Mul(hn::Sub(exp_up_to_88(hn::Sub(load(logits + i, lanes), shift)), less), factor), logits + i, lanes);
  });
}

SoftmaxKernels<float> of_float() { return {pieces<float>, gradient<float>}; }
SoftmaxKernels<c10::BFloat16> of_bf16() { return {pieces<c10::BFloat16>, gradient<c10::BFloat16>}; }
SoftmaxKernels<c10::Half> of_fp16() { return {pieces<c10::Half>, gradient<c10::Half>}; }

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(of_float);
HWY_EXPORT(of_bf16);
HWY_EXPORT(of_fp16);

template <>
SoftmaxKernels<float> softmax_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_float)();
}
template <>
SoftmaxKernels<c10::BFloat16> softmax_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_bf16)();
}
template <>
SoftmaxKernels<c10::Half> softmax_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_fp16)();
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
