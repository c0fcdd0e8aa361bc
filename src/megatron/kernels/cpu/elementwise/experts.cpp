#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/experts.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/elementwise/activation-inl.h"
#include "megatron/kernels/cpu/elementwise/experts.h"
#include "megatron/kernels/cpu/elementwise/vector_body.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

template <class Form, class T>
float weighted_backward(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count) {
  const Floats d;
  const F w = hn::Set(d, weight);
  F sum = hn::Zero(d);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F x = load(u + i, lanes), g = load(dy + i, lanes), value = Form::value(x);
    sum = hn::MulAdd(g, value, sum);
    store(hn::Mul(w, value), y + i, lanes);
    store(hn::Mul(hn::Mul(w, g), Form::slope(x)), du + i, lanes);
  });
  return sum_of_lanes(sum);
}

template <class Form, class T>
float gated_weighted_backward(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count) {
  const Floats d;
  const F w = hn::Set(d, weight);
  F sum = hn::Zero(d);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F gate = load(u + i, lanes), up = load(u + count + i, lanes), g = load(dy + i, lanes);
    const F open = Form::value(gate), value = hn::Mul(open, up), wg = hn::Mul(w, g);
    sum = hn::MulAdd(g, value, sum);
    store(hn::Mul(w, value), y + i, lanes);
    store(hn::Mul(hn::Mul(wg, up), Form::slope(gate)), du + i, lanes);
    store(hn::Mul(wg, open), du + count + i, lanes);
  });
  return sum_of_lanes(sum);
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
ExpertKernels<T> kernels_of_experts(Activation form) {
  return with_form(form, []<class Form>(Form) {
    return ExpertKernels<T>{weighted_backward<Form, T>, gated_weighted_backward<Form, T>, weighted_sum<T>};
  });
}
ExpertKernels<float> experts_of_float(Activation form) { return kernels_of_experts<float>(form); }
ExpertKernels<c10::BFloat16> experts_of_bf16(Activation form) { return kernels_of_experts<c10::BFloat16>(form); }
ExpertKernels<c10::Half> experts_of_fp16(Activation form) { return kernels_of_experts<c10::Half>(form); }

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(experts_of_float);
HWY_EXPORT(experts_of_bf16);
HWY_EXPORT(experts_of_fp16);

template <>
ExpertKernels<float> expert_kernels(Activation form) {
  return HWY_DYNAMIC_DISPATCH(experts_of_float)(form);
}
template <>
ExpertKernels<c10::BFloat16> expert_kernels(Activation form) {
  return HWY_DYNAMIC_DISPATCH(experts_of_bf16)(form);
}
template <>
ExpertKernels<c10::Half> expert_kernels(Activation form) {
  return HWY_DYNAMIC_DISPATCH(experts_of_fp16)(form);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
