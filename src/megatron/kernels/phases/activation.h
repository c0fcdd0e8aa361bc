#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// As kernels::Activation, which a header of torch declares.
enum class Form : std::uint8_t { GeluTanh, GeluErf, Silu, Relu, SquaredRelu, QuickGelu };

template <class C>
MEGATRON_BOTH C tanh_of_gelu(C u) {
  return std::tanh((u + u * u * u * C(0.044715)) * C(0.79788456080286535588));
}
template <class C>
MEGATRON_BOTH C sigmoid(C u) {
  return C(1) / (C(1) + std::exp(-u));
}

template <class C>
MEGATRON_BOTH C value_of(Form form, C u) {
  switch (form) {
    case Form::GeluTanh:
      return u * C(0.5) * (tanh_of_gelu(u) + C(1));
    case Form::GeluErf:
      return u * C(0.5) * (std::erf(u * C(0.70710678118654752440)) + C(1));
    case Form::Silu:
      return u * sigmoid(u);
    case Form::Relu:
      return u < C(0) ? C(0) : u;
    case Form::SquaredRelu:
      return u < C(0) ? C(0) : u * u;
    case Form::QuickGelu:
      return u * sigmoid(u * C(1.702));
  }
  return u;
}

template <class C>
MEGATRON_BOTH C slope_of(Form form, C u) {
  switch (form) {
    case Form::GeluTanh: {
      const C t = tanh_of_gelu(u);
      return (t + C(1)) * C(0.5) +
             u * C(0.5) * (C(1) - t * t) * (C(0.79788456080286535588) * (C(1) + u * u * C(3 * 0.044715)));
    }
    case Form::GeluErf:
      return (std::erf(u * C(0.70710678118654752440)) + C(1)) * C(0.5) +
             u * std::exp(u * u * C(-0.5)) * C(0.39894228040143267794);
    case Form::Silu: {
      const C gate = sigmoid(u);
      return gate * (C(1) + u * sigmoid(-u));
    }
    case Form::Relu:
      return u > C(0) ? C(1) : C(0);
    case Form::SquaredRelu:
      return u < C(0) ? C(0) : C(2) * u;
    case Form::QuickGelu: {
      const C quick = u * C(1.702), gate = sigmoid(quick);
      return gate * (C(1) + quick * sigmoid(-quick));
    }
  }
  return u;
}

/// The four directions of an activation. A thread has a chunk of the features that leave it, f of a row.
template <class T>
struct Activate : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    T* u = nullptr;           ///< [rows, f], gated [rows, 2 f]; overwritten with u + bias where there is a bias
    const T* bias = nullptr;  ///< as a row of u
    const T* dy = nullptr;    ///< [rows, f]; null: forward
    T* out = nullptr;         ///< y [rows, f], or the gradient of u, as u
    std::int64_t rows = 0, f = 0;
    bool gated = false;
    Form form = Form::GeluTanh;
    C clamp = 0, offset = 0;  ///< as of kernels::Activation
  };
  using Shared = Nothing;
  using Local = Nothing;

  /// u, with the bias added and rounded as it is stored.
  static MEGATRON_BOTH void input(const Args& a, std::int64_t row, std::int64_t column, int count, C (&u)[kChunk<T>]) {
    T* const place = a.u + row * (a.gated ? 2 * a.f : a.f) + column;
    load(place, count, u);
    if (a.bias == nullptr) return;
    C bias[kChunk<T>];
    load(a.bias + column, count, bias);
    for (int i = 0; i < kChunk<T>; ++i) u[i] = widen(narrow<T>(u[i] + bias[i]));
    store(place, count, u);
  }

  /// Whether the clamp lets a gate, or a value, be what it is.
  static MEGATRON_BOTH bool free_gate(const Args& a, C u) { return !(a.clamp > C(0)) || u <= a.clamp; }
  static MEGATRON_BOTH bool free_value(const Args& a, C u) {
    return !(a.clamp > C(0)) || (u <= a.clamp && u >= -a.clamp);
  }
  static MEGATRON_BOTH C gate_of(const Args& a, C u) { return a.clamp > C(0) && u > a.clamp ? a.clamp : u; }
  static MEGATRON_BOTH C value_in(const Args& a, C u) {
    const C most = a.clamp > C(0) && u > a.clamp ? a.clamp : u;
    return (a.clamp > C(0) && most < -a.clamp ? -a.clamp : most) + a.offset;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<Activate>(at), chunks = chunks_of<T>(a.f), row = task / chunks;
    if (row >= a.rows) return;
    const std::int64_t chunk = task % chunks, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.f, chunk);
    C u[kChunk<T>], value[kChunk<T>], dy[kChunk<T>];
    input(a, row, first, count, u);
    if (a.gated) input(a, row, a.f + first, count, value);
    if (a.dy == nullptr) {
      for (int i = 0; i < kChunk<T>; ++i)
        u[i] = a.gated ? value_of(a.form, gate_of(a, u[i])) * value_in(a, value[i]) : value_of(a.form, u[i]);
      return store(a.out + row * a.f + first, count, u);
    }
    load(a.dy + row * a.f + first, count, dy);
    if (!a.gated) {
      for (int i = 0; i < kChunk<T>; ++i) u[i] = dy[i] * slope_of(a.form, u[i]);
      return store(a.out + row * a.f + first, count, u);
    }
    for (int i = 0; i < kChunk<T>; ++i) {
      const C gate = gate_of(a, u[i]), dvalue = dy[i] * value_of(a.form, gate);
      u[i] = free_gate(a, u[i]) ? dy[i] * value_in(a, value[i]) * slope_of(a.form, gate) : C(0);
      value[i] = free_value(a, value[i]) ? dvalue : C(0);
    }
    store(a.out + row * 2 * a.f + first, count, u);
    store(a.out + row * 2 * a.f + a.f + first, count, value);
  }
};

}  // namespace megatron::kernels::phases
