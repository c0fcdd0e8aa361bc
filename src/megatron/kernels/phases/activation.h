#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// As kernels::Activation, which a header of torch declares.
enum class Form : std::uint8_t { GeluTanh, GeluErf, Silu, Relu, SquaredRelu, QuickGelu };

// T: how a value is stored, which says how precise it need be.
template <class T>
MEGATRON_BOTH Compute<T> sigmoid(Compute<T> u) {
  return quick_inverse<T>(Compute<T>(1) + quick_exp<T>(-u));
}
/// (1 + tanh z) / 2, of GELU's z.
template <class T>
MEGATRON_BOTH Compute<T> gate_of_gelu(Compute<T> u) {
  using C = Compute<T>;
  const C z = (u + u * u * u * C(0.044715)) * C(0.79788456080286535588);
  if constexpr (sizeof(T) == 2) return sigmoid<T>(z + z);
  return C(0.5) * (std::tanh(z) + C(1));
}

template <Form kForm, class T>
MEGATRON_BOTH Compute<T> value_of(Compute<T> u) {
  using C = Compute<T>;
  if constexpr (kForm == Form::GeluTanh) return u * gate_of_gelu<T>(u);
  if constexpr (kForm == Form::GeluErf) return u * C(0.5) * (std::erf(u * C(0.70710678118654752440)) + C(1));
  if constexpr (kForm == Form::Silu) return u * sigmoid<T>(u);
  if constexpr (kForm == Form::Relu) return u < C(0) ? C(0) : u;
  if constexpr (kForm == Form::SquaredRelu) return u < C(0) ? C(0) : u * u;
  return u * sigmoid<T>(u * C(1.702));
}

/// What visit.operator()<FORM>() gives: a form that is known when the kernel runs as one that its code is compiled for.
template <class Visit>
MEGATRON_BOTH auto with_form(Form form, const Visit& visit) {
  switch (form) {
    case Form::GeluTanh:
      return visit.template operator()<Form::GeluTanh>();
    case Form::GeluErf:
      return visit.template operator()<Form::GeluErf>();
    case Form::Silu:
      return visit.template operator()<Form::Silu>();
    case Form::Relu:
      return visit.template operator()<Form::Relu>();
    case Form::SquaredRelu:
      return visit.template operator()<Form::SquaredRelu>();
    case Form::QuickGelu:
      break;
  }
  return visit.template operator()<Form::QuickGelu>();
}

template <Form kForm, class T>
MEGATRON_BOTH Compute<T> slope_of(Compute<T> u) {
  using C = Compute<T>;
  if constexpr (kForm == Form::GeluTanh || kForm == Form::QuickGelu)  // slopes are 0 or 1 there, but products overflow
    u = u < C(-1e6) ? C(-1e6) : u > C(1e6) ? C(1e6) : u;
  if constexpr (kForm == Form::GeluTanh) {
    const C gate = gate_of_gelu<T>(u);
    return gate + u * C(2) * gate * (C(1) - gate) * (C(0.79788456080286535588) * (C(1) + u * u * C(3 * 0.044715)));
  }
  if constexpr (kForm == Form::GeluErf)
    return (std::erf(u * C(0.70710678118654752440)) + C(1)) * C(0.5) +
           u * quick_exp<T>(u * u * C(-0.5)) * C(0.39894228040143267794);
  if constexpr (kForm == Form::Silu) {
    const C gate = sigmoid<T>(u);
    return gate * (C(1) + u * (C(1) - gate));
  }
  if constexpr (kForm == Form::Relu) return u > C(0) ? C(1) : C(0);
  if constexpr (kForm == Form::SquaredRelu) return u < C(0) ? C(0) : C(2) * u;
  const C quick = u * C(1.702), gate = sigmoid<T>(quick);
  return gate * (C(1) + quick * (C(1) - gate));
}

/// The four directions of an activation. A thread has a chunk of the features that leave it, f of a row.
template <class T>
struct Activate : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1, kN = kChunk<T>;
  struct Args {
    T* u = nullptr;           ///< [rows, f], gated [rows, 2 f]; overwritten with u + bias where there is a bias
    const T* bias = nullptr;  ///< as a row of u
    const T* dy = nullptr;    ///< [rows, f]; null: forward
    T* out = nullptr;         ///< y [rows, f], or the gradient of u, as u
    T* again = nullptr;       ///< backward: y [rows, f], where it is wanted too
    std::int64_t rows = 0, f = 0;
    Divisor chunks = {};  ///< of a row
    bool gated = false;
    Form form = Form::GeluTanh;
    C clamp = 0, offset = 0;  ///< as of kernels::Activation
  };
  using Shared = Nothing;
  using Local = Nothing;

  /// u, with the bias added and rounded as it is stored.
  static MEGATRON_BOTH void input(const Args& a, std::int64_t row, std::int64_t column, int count, C (&u)[kN]) {
    T* const place = a.u + row * (a.gated ? 2 * a.f : a.f) + column;
    load(place, count, u);
    if (a.bias == nullptr) return;
    C bias[kN];
    load(a.bias + column, count, bias);
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) u[i] = u[i] + bias[i];
    const Chunk<T> sum = packed<T>(u);
    unpack(sum, u);
    store_chunk(place, count, sum);
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

  template <Form kForm>
  static MEGATRON_BOTH void plain(const Args& a, std::int64_t row, std::int64_t first, int count) {
    C u[kN], dy[kN];
    const std::int64_t place = row * a.f + first;
    input(a, row, first, count, u);
    if (a.dy != nullptr) {
      load(a.dy + place, count, dy);
      MEGATRON_UNROLL for (int i = 0; i < kN; ++i) dy[i] = dy[i] * slope_of<kForm, T>(u[i]);
      store(a.out + place, count, dy);
      if (a.again == nullptr) return;
    }
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) u[i] = value_of<kForm, T>(u[i]);
    store((a.dy != nullptr ? a.again : a.out) + place, count, u);
  }
  template <Form kForm>
  static MEGATRON_BOTH void gated(const Args& a, std::int64_t row, std::int64_t first, int count) {
    C u[kN], value[kN], other[kN];
    const std::int64_t place = row * a.f + first;
    input(a, row, first, count, u);
    input(a, row, a.f + first, count, value);
    if (a.dy == nullptr || a.again != nullptr) {
      MEGATRON_UNROLL for (int i = 0; i < kN; ++i) other[i] =
          value_of<kForm, T>(gate_of(a, u[i])) * value_in(a, value[i]);
      store((a.dy != nullptr ? a.again : a.out) + place, count, other);
      if (a.dy == nullptr) return;
    }
    load(a.dy + place, count, other);
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) {
      const C gate = gate_of(a, u[i]), dvalue = other[i] * value_of<kForm, T>(gate);
      u[i] = free_gate(a, u[i]) ? other[i] * value_in(a, value[i]) * slope_of<kForm, T>(gate) : C(0);
      value[i] = free_value(a, value[i]) ? dvalue : C(0);
    }
    store(a.out + row * 2 * a.f + first, count, u);
    store(a.out + row * 2 * a.f + a.f + first, count, value);
  }
  template <Form kForm>
  static MEGATRON_BOTH void of(const Args& a, std::int64_t row, std::int64_t first, int count) {
    if (a.gated)
      gated<kForm>(a, row, first, count);
    else
      plain<kForm>(a, row, first, count);
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<Activate>(at), row = a.chunks.of(task);
    if (row >= a.rows) return;
    const std::int64_t chunk = task - row * a.chunks.by, first = chunk * kN;
    const int count = chunk_size<T>(a.f, chunk);
    with_form(a.form, [&]<Form kForm>() { of<kForm>(a, row, first, count); });
  }
};

}  // namespace megatron::kernels::phases
