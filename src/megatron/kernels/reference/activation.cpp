#include "megatron/kernels/activation.h"

#include <cmath>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535588, kCubic = 0.044715;
constexpr double kInvSqrt2 = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794;

at::Tensor inner(const at::Tensor& u) { return (u + u.pow(3) * kCubic) * kSqrt2OverPi; }

}  // namespace

at::Tensor activation(const at::Tensor& u_in, Activation form) {
  const at::Tensor u = up(u_in);
  const at::Tensor y =
      form == Activation::GeluTanh ? u * 0.5 * (inner(u).tanh() + 1) : u * 0.5 * ((u * kInvSqrt2).erf() + 1);
  return y.to(u_in.scalar_type());
}

at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  if (bias.defined()) x.add_(bias);
  return reference::activation(x, form);
}

at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u_in, Activation form) {
  const at::Tensor u = up(u_in);
  at::Tensor slope;
  if (form == Activation::GeluTanh) {
    const at::Tensor t = inner(u).tanh();
    slope = (t + 1) * 0.5 + u * 0.5 * (1 - t * t) * (kSqrt2OverPi * (1 + u * u * (3 * kCubic)));
  } else {
    slope = ((u * kInvSqrt2).erf() + 1) * 0.5 + u * (u * u * -0.5).exp() * kInvSqrt2Pi;
  }
  dy.copy_(up(dy) * slope);
  return dy;
}

}  // namespace megatron::kernels::reference
