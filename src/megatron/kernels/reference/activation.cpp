#include "megatron/kernels/activation.h"

#include <ATen/ops/cat.h>

#include <cmath>
#include <stdexcept>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535588, kCubic = 0.044715;
constexpr double kInvSqrt2 = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794;

at::Tensor inner(const at::Tensor& u) { return (u + u.pow(3) * kCubic) * kSqrt2OverPi; }

at::Tensor value_of(const at::Tensor& u, Activation form) {
  switch (form) {
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
  }
  throw std::logic_error("an activation without a formula");
}

at::Tensor slope_of(const at::Tensor& u, Activation form) {
  switch (form) {
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
  }
  throw std::logic_error("an activation without a formula");
}

struct Gated {
  at::Tensor gate, value;
};
Gated halves(const at::Tensor& u) {
  const std::int64_t features = u.size(-1) / 2;
  return {up(u.narrow(-1, 0, features)), up(u.narrow(-1, features, features))};
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
  const auto [gate, value] = halves(u);
  return (value_of(gate, form) * value).to(u.scalar_type());
}

at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  if (bias.defined()) x.add_(bias);
  return reference::gated_activation(x, form);
}

at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form) {
  const auto [gate, value] = halves(u);
  const at::Tensor g = up(dy);
  return at::cat({g * value * slope_of(gate, form), g * value_of(gate, form)}, -1).to(u.scalar_type());
}

}  // namespace megatron::kernels::reference
