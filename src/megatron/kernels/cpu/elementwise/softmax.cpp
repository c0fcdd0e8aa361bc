#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/softmax.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <algorithm>
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

template <class T>
SoftmaxRow pieces(const T* logits, std::size_t count) {
  const Floats d;
  constexpr std::size_t kBlock = 1024;  // elements summed in float32 before they join the float64 sum
  F largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for_vectors(count, [&](std::size_t i, std::size_t lanes)
                         VECTOR_BODY { largest = hn::Max(largest, load_logits(logits + i, lanes)); });
  SoftmaxRow row{max_of_lanes(largest), 0, 0};
  const F max = hn::Set(d, row.max);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    F sum_exp = hn::Zero(d), sum = hn::Zero(d);
    for_vectors(std::min(kBlock, count - begin), [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
      sum_exp = hn::Add(sum_exp, exp(hn::Sub(load_logits(logits + begin + i, lanes), max)));
      sum = hn::Add(sum, load(logits + begin + i, lanes));
    });
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
    store(hn::Mul(hn::Sub(exp(hn::Sub(load(logits + i, lanes), shift)), less), factor), logits + i, lanes);
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
