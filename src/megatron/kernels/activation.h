#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megatron::kernels {

/// A function f, and what a gated unit does besides.
struct Activation {
  /// GeluTanh: 0.5 x (1 + tanh(0.79788456 (x + 0.044715 x^3))), Megatron's fused bias-GELU; GeluErf: exact (Hendrycks &
  /// Gimpel 2016); Silu: x / (1 + e^-x); SquaredRelu: max(x, 0)^2 (So et al. 2021); QuickGelu: x / (1 + e^-1.702x).
  enum Kind : std::uint8_t { GeluTanh, GeluErf, Silu, Relu, SquaredRelu, QuickGelu };

  // NOLINTNEXTLINE(google-explicit-constructor): a function is all that most have
  constexpr Activation(Kind k = GeluTanh, double gate_clamp = 0, double value_offset = 0)
      : kind(k), clamp(gate_clamp), offset(value_offset) {}

  Kind kind;
  double clamp;   ///< of gated units: gates are at most this, values from -clamp to clamp; 0: as they are
  double offset;  ///< of gated units: added to the values

  friend constexpr bool operator==(const Activation&, const Activation&) = default;
};

/// y = f(x + bias). x [.., f] is overwritten with x + bias, which the backward pass needs; bias [f] may be undefined.
at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form);

/// dx = dy * f'(u), with u = x + bias as bias_activation left it. Overwrites and returns dy.
at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u, Activation form);

/// y = f(u) again from u: recomputing it in the backward pass is cheaper than keeping it.
at::Tensor activation(const at::Tensor& u, Activation form);

// Gated linear units (Shazeer 2020; Silu gives SwiGLU): the last dimension of u [.., 2 f] is [gate; value], as
// Megatron's fc1 has it, and y [.., f] = f(gate) * (value + offset), of gates and values that are clamped first.

/// x [.., 2 f] is overwritten with u = x + bias; bias [2 f] may be undefined.
at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form);

/// du [.., 2 f] from dy [.., f] and u.
at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form);

/// y again from u.
at::Tensor gated_activation(const at::Tensor& u, Activation form);

}  // namespace megatron::kernels
