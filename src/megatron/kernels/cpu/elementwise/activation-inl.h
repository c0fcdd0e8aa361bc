// Activations and their slopes on vectors of float.
#if defined(MEGATRON_KERNELS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ACTIVATION_INL_H_
#undef MEGATRON_KERNELS_CPU_ACTIVATION_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ACTIVATION_INL_H_
#endif

#include "megatron/kernels/activation.h"
#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

constexpr float kTwoSqrt2OverPi = 1.59576912160573071f, kCubic = 0.044715f;
constexpr float kLog2E = 1.44269504f;
// Where a gate is as good as 0 or 1: e to the argument's power is at most 2^125.
constexpr float kFarTanh = 9.5f, kFarSilu = 86.0f;
constexpr float kInvSqrt2 = 0.70710678118654752f, kInvSqrt2Pi = 0.39894228040143268f;

/// 1 / (1 + 2^t), |t| <= 125, and the 2^t in it.
HWY_INLINE F gate_of(F t, F& power) {
  power = exp2(t);
  return reciprocal(hn::Add(hn::Set(Floats(), 1.0f), power));
}

/// 0.5 (1 + tanh(t)) = 1 / (1 + e^-2t) with t = sqrt(2/pi) (x + 0.044715 x^3), and the e^-2t in it. |x| <= kFarTanh.
HWY_INLINE F tanh_gate(F x, F x2, F& e) {
  const Floats d;
  constexpr float kLinear = -kTwoSqrt2OverPi * kLog2E;
  return gate_of(hn::Mul(x, hn::MulAdd(hn::Set(d, kLinear * kCubic), x2, hn::Set(d, kLinear))), e);
}

/// The normal distribution function, and e^(-x^2/2).
HWY_INLINE F normal_gate(F x, F& exp_minus_half_square) {
  const Floats d;
  const F half = hn::Set(d, 0.5f);
  return hn::MulAdd(half, erf(hn::Mul(x, hn::Set(d, kInvSqrt2)), exp_minus_half_square), half);
}

/// f(x) and f'(x) of one form. What multiplies a gate that is as good as 0 is no further away than the gate knows: the
/// product of -3e38 and 2^-124 is not small.
struct Tanh {
  static HWY_INLINE F value(F x) {
    const Floats d;
    F unused;
    const F low = hn::Max(hn::Set(d, -kFarTanh), x), near = hn::Min(hn::Set(d, kFarTanh), low);
    return hn::Mul(low, tanh_gate(near, hn::Mul(near, near), unused));
  }
  static HWY_INLINE F slope(F x) {
    const Floats d;
    const F near = within(x, kFarTanh), x2 = hn::Mul(near, near);
    F e;
    const F s = tanh_gate(near, x2, e);
    const F inner = hn::MulAdd(hn::Set(d, 3 * kCubic * kTwoSqrt2OverPi), x2, hn::Set(d, kTwoSqrt2OverPi));
    return hn::MulAdd(hn::Mul(near, inner), hn::Mul(s, hn::Mul(s, e)), s);  // 1 - s = s e, without cancellation
  }
};

struct Erf {
  static HWY_INLINE F value(F x) {
    F unused;
    return hn::Mul(x, normal_gate(x, unused));
  }
  static HWY_INLINE F slope(F x) {
    F density;
    const F gate = normal_gate(x, density);
    return hn::MulAdd(hn::Mul(x, hn::Set(Floats(), kInvSqrt2Pi)), density, gate);
  }
};

struct Silu {
  /// 1 / (1 + e^-x), |x| <= kFarSilu, and the e^-x in it.
  static HWY_INLINE F gate(F x, F& e) { return gate_of(hn::Mul(x, hn::Set(Floats(), -kLog2E)), e); }
  static HWY_INLINE F value(F x) {
    const Floats d;
    F unused;
    const F low = hn::Max(hn::Set(d, -kFarSilu), x);
    return hn::Mul(low, gate(hn::Min(hn::Set(d, kFarSilu), low), unused));
  }
  static HWY_INLINE F slope(F x) {
    const F near = within(x, kFarSilu);
    F e;
    const F s = gate(near, e);
    return hn::MulAdd(near, hn::Mul(s, hn::Mul(s, e)), s);
  }
};

/// Below 0 nothing; NaN stays NaN.
HWY_INLINE F positive_part(F x) {
  const Floats d;
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
}

struct Relu {
  static HWY_INLINE F value(F x) { return positive_part(x); }
  static HWY_INLINE F slope(F x) {
    const Floats d;
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f));
  }
};

struct SquaredRelu {
  static HWY_INLINE F value(F x) {
    const F v = positive_part(x);
    return hn::Mul(v, v);
  }
  static HWY_INLINE F slope(F x) {
    const F v = positive_part(x);
    return hn::Add(v, v);
  }
};

struct QuickGelu {
  static constexpr float kQuick = 1.702f;
  static HWY_INLINE F value(F x) {
    const Floats d;
    F unused;
    const F low = hn::Max(hn::Set(d, -kFarSilu / kQuick), x);
    return hn::Mul(low, Silu::gate(hn::Min(hn::Set(d, kFarSilu), hn::Mul(low, hn::Set(d, kQuick))), unused));
  }
  static HWY_INLINE F slope(F x) {
    const F quick = within(hn::Mul(x, hn::Set(Floats(), kQuick)), kFarSilu);
    F e;
    const F s = Silu::gate(quick, e);
    return hn::MulAdd(quick, hn::Mul(s, hn::Mul(s, e)), s);
  }
};

/// What a gated unit does to its gates and values before it multiplies them (kernels::Activation); NaN stays NaN.
struct GatedUnit {
  float clamp, offset;
  bool clamps;

  explicit GatedUnit(const Activation& form)
      : clamp(static_cast<float>(form.clamp)), offset(static_cast<float>(form.offset)), clamps(form.clamp > 0) {}

  HWY_INLINE F gate(F u) const { return clamps ? hn::Min(hn::Set(Floats(), clamp), u) : u; }
  HWY_INLINE F value(F u) const {
    const Floats d;
    const F held = clamps ? hn::Max(hn::Set(d, -clamp), hn::Min(hn::Set(d, clamp), u)) : u;
    return offset != 0 ? hn::Add(held, hn::Set(d, offset)) : held;
  }
  /// The gradients of gate and value, of which those that the clamp holds have none.
  HWY_INLINE F gate_gradient(F u, F gradient) const {
    return clamps ? hn::IfThenElseZero(hn::Le(u, hn::Set(Floats(), clamp)), gradient) : gradient;
  }
  HWY_INLINE F value_gradient(F u, F gradient) const {
    return clamps ? hn::IfThenElseZero(hn::Le(hn::Abs(u), hn::Set(Floats(), clamp)), gradient) : gradient;
  }
};

/// Stores v at p and returns what can be read there.
HWY_INLINE F stored(F v, float* p, std::size_t lanes) {
  store(v, p, lanes);
  return v;
}
HWY_INLINE F stored(F v, c10::BFloat16* p, std::size_t lanes) {
  const hn::RebindToUnsigned<Floats> du;
  const HalfBits bits = to_bf16(v);
  store_bits(bits, p, lanes);
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
HWY_INLINE F stored(F v, c10::Half* p, std::size_t lanes) {
  store(v, p, lanes);
  return load(p, lanes);
}

/// fn of what computes `form`.
template <class Fn>
auto with_form(const Activation& form, const Fn& fn) {
  switch (form.kind) {
    case Activation::GeluErf:
      return fn(Erf());
    case Activation::Silu:
      return fn(Silu());
    case Activation::Relu:
      return fn(Relu());
    case Activation::SquaredRelu:
      return fn(SquaredRelu());
    case Activation::QuickGelu:
      return fn(QuickGelu());
    case Activation::GeluTanh:
      break;
  }
  return fn(Tanh());
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
