#include "megatron/kernels/activation.h"

#include <ATen/ops/cat.h>

#include <cmath>
#include <stdexcept>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535588, kCubic = 0.044715;
constexpr double kQuick = 1.702;
constexpr double kInvSqrt2 = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794;

at::Tensor inner(const at::Tensor& u) { return (u + u.pow(3) * kCubic) * kSqrt2OverPi; }

at::Tensor value_of(const at::Tensor& u, Activation form) {
  switch (form.kind) {
    case Activation::GeluTanh:
      return u * 0.5 * (inner(u).tanh() + 1);
    case Activation::GeluErf:
      return u * 0.5 * ((u * kInvSqrt2).erf() + 1);
    case Activation::Silu:
      return u * u.sigmoid();
    case Activation::Relu:
      return u.clamp_min(0);
    case Activation::SquaredRelu:
      return u.clamp_min(0).square();
    case Activation::QuickGelu:
      return u * (u * kQuick).sigmoid();
  }
  throw std::logic_error("an activation without a formula");
}

at::Tensor slope_of(const at::Tensor& all, Activation form) {
  // Further away no slope changes but that of SquaredRelu, and squares overflow.
  const at::Tensor u = form.kind == Activation::SquaredRelu ? all : all.clamp(-1e6, 1e6);
  switch (form.kind) {
    case Activation::GeluTanh: {
      const at::Tensor t = inner(u).tanh();
      return (t + 1) * 0.5 + u * 0.5 * (1 - t * t) * (kSqrt2OverPi * (1 + u * u * (3 * kCubic)));
    }
    case Activation::GeluErf:
      return ((u * kInvSqrt2).erf() + 1) * 0.5 + u * (u * u * -0.5).exp() * kInvSqrt2Pi;
    case Activation::Silu: {
      const at::Tensor gate = u.sigmoid();
      return gate * (1 + u * (-u).sigmoid());
    }
    case Activation::Relu:
      return (u > 0).to(u.scalar_type());
    case Activation::SquaredRelu:
      return u.clamp_min(0) * 2;
    case Activation::QuickGelu: {
      const at::Tensor gate = (u * kQuick).sigmoid();
      return gate * (1 + u * kQuick * (u * -kQuick).sigmoid());
    }
  }
  throw std::logic_error("an activation without a formula");
}

/// The halves as the unit multiplies them, and where they are not held by the clamp; undefined: everywhere.
struct Gated {
  at::Tensor gate, value, free_gate, free_value;
};
Gated halves(const at::Tensor& u, Activation form) {
  const std::int64_t features = u.size(-1) / 2;
  Gated half{up(u.narrow(-1, 0, features)), up(u.narrow(-1, features, features)), {}, {}};
  if (form.clamp > 0) {
    half.free_gate = half.gate <= form.clamp;
    half.free_value = half.value.abs() <= form.clamp;
    half.gate = half.gate.clamp_max(form.clamp);
    half.value = half.value.clamp(-form.clamp, form.clamp);
  }
  if (form.offset != 0) half.value = half.value + form.offset;
  return half;
}

}  // namespace

at::Tensor activation(const at::Tensor& u, Activation form) { return value_of(up(u), form).to(u.scalar_type()); }

at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  if (bias.defined()) x.add_(bias);
  return reference::activation(x, form);
}

at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u, Activation form) {
  dy.copy_(up(dy) * slope_of(up(u), form));
  return dy;
}

at::Tensor gated_activation(const at::Tensor& u, Activation form) {
  const Gated half = halves(u, form);
  return (value_of(half.gate, form) * half.value).to(u.scalar_type());
}

at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  if (bias.defined()) x.add_(bias);
  return reference::gated_activation(x, form);
}

at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form) {
  const Gated half = halves(u, form);
  const at::Tensor g = up(dy);
  at::Tensor dgate = g * half.value * slope_of(half.gate, form), dvalue = g * value_of(half.gate, form);
  if (half.free_gate.defined()) {
    dgate = dgate * half.free_gate;
    dvalue = dvalue * half.free_value;
  }
  return at::cat({dgate, dvalue}, -1).to(u.scalar_type());
}

}  // namespace megatron::kernels::reference
