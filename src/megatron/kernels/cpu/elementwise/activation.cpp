#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/activation.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/elementwise/activation-inl.h"
#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/elementwise/vector_body.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// x + bias where there is one, as it is stored: what the backward pass will read.
template <class T>
HWY_INLINE F with_bias(T* x, const T* bias, std::size_t i, std::size_t lanes) {
  const F v = load(x + i, lanes);
  return bias != nullptr ? stored(hn::Add(v, load(bias + i, lanes)), x + i, lanes) : v;
}

template <class Form, class T>
void forward(T* x, const T* bias, T* y, std::size_t count, const Activation& /*form*/) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         VECTOR_BODY { store(Form::value(with_bias(x, bias, i, lanes)), y + i, lanes); });
}

template <class Form, class T>
void backward(T* dy, const T* u, std::size_t count) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    store(hn::Mul(load(dy + i, lanes), Form::slope(load(u + i, lanes))), dy + i, lanes);
  });
}

template <class Form, class T>
void gated_forward(T* x, const T* bias, T* y, std::size_t count, const Activation& form) {
  const GatedUnit unit(form);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F gate = with_bias(x, bias, i, lanes);
    const F value = with_bias(x + count, bias != nullptr ? bias + count : nullptr, i, lanes);
    store(hn::Mul(Form::value(unit.gate(gate)), unit.value(value)), y + i, lanes);
  });
}

template <class Form, class T>
void gated_backward(const T* dy, const T* u, T* du, std::size_t count, const Activation& form) {
  const GatedUnit unit(form);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F in = load(u + i, lanes), up = load(u + count + i, lanes), g = load(dy + i, lanes), gate = unit.gate(in);
    store(unit.gate_gradient(in, hn::Mul(hn::Mul(g, unit.value(up)), Form::slope(gate))), du + i, lanes);
    store(unit.value_gradient(up, hn::Mul(g, Form::value(gate))), du + count + i, lanes);
  });
}

template <class Form, class T>
float weighted_backward(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count,
                        const Activation& /*form*/) {
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
float gated_weighted_backward(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count,
                              const Activation& form) {
  const GatedUnit unit(form);
  const Floats d;
  const F w = hn::Set(d, weight);
  F sum = hn::Zero(d);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F in = load(u + i, lanes), in_up = load(u + count + i, lanes), g = load(dy + i, lanes);
    const F gate = unit.gate(in), up = unit.value(in_up);
    const F open = Form::value(gate), value = hn::Mul(open, up), wg = hn::Mul(w, g);
    sum = hn::MulAdd(g, value, sum);
    store(hn::Mul(w, value), y + i, lanes);
    store(unit.gate_gradient(in, hn::Mul(hn::Mul(wg, up), Form::slope(gate))), du + i, lanes);
    store(unit.value_gradient(in_up, hn::Mul(wg, open)), du + count + i, lanes);
  });
  return sum_of_lanes(sum);
}

template <class Form, class T>
ActivationKernels<T> kernels_of() {
  return {forward<Form, T>,        backward<Form, T>,          gated_forward<Form, T>,
          gated_backward<Form, T>, weighted_backward<Form, T>, gated_weighted_backward<Form, T>};
}
template <class T>
ActivationKernels<T> kernels(Activation form) {
  return with_form(form, []<class Form>(Form) { return kernels_of<Form, T>(); });
}
ActivationKernels<float> of_float(Activation form) { return kernels<float>(form); }
ActivationKernels<c10::BFloat16> of_bf16(Activation form) { return kernels<c10::BFloat16>(form); }
ActivationKernels<c10::Half> of_fp16(Activation form) { return kernels<c10::Half>(form); }

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(of_float);
HWY_EXPORT(of_bf16);
HWY_EXPORT(of_fp16);

template <>
ActivationKernels<float> activation_kernels(Activation form) {
  return HWY_DYNAMIC_DISPATCH(of_float)(form);
}
template <>
ActivationKernels<c10::BFloat16> activation_kernels(Activation form) {
  return HWY_DYNAMIC_DISPATCH(of_bf16)(form);
}
template <>
ActivationKernels<c10::Half> activation_kernels(Activation form) {
  return HWY_DYNAMIC_DISPATCH(of_fp16)(form);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
