#pragma once
#include <limits>

#include "megatron/base/philox.h"
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Which words round what an update stores in 16 bits (optimizer.h of kernels): those of (key, sample + what, number).
struct Rounding {
  bool stochastic = false;
  std::uint64_t key = 0, sample = 0;
  std::int64_t first = 0, run = 1, stride = 1;

  MEGATRON_BOTH std::uint32_t fraction(std::int64_t i, std::uint64_t what) const {
    const std::int64_t number = first + i / run * stride + i % run;
    return random_word(key, sample + what, static_cast<std::uint64_t>(number)) >> 16;
  }
};

/// |x| up to the next multiple of its last place where the part cut off and `fraction` / 2^16 reach one.
MEGATRON_BOTH double rounded_to(double x, bool brain, std::uint32_t fraction) {
  const double size = x < 0 ? -x : x;
  if (!(size <= std::numeric_limits<double>::max())) return x;  // infinity, NaN
  int exponent = 0;
  (void)std::frexp(size, &exponent);
  exponent -= brain ? 8 : 11;
  const int least = brain ? -133 : -24;
  const double unit = std::ldexp(1.0, exponent < least ? least : exponent);
  return std::copysign(std::floor(size / unit + fraction * 0x1p-16) * unit, x);
}

template <class C>
MEGATRON_BOTH void store_rounded(const Out& out, std::int64_t i, C x, const Rounding& rounding, std::uint64_t what) {
  const bool brain = out.type == DType::Bf16;
  if (!rounding.stochastic || !(brain || out.type == DType::Fp16)) return write(out, i, x);
  const std::uint32_t fraction = rounding.fraction(i, what);
  if constexpr (sizeof(C) == sizeof(float)) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (brain && (bits & 0x7F800000u) != 0x7F800000u) {  // the same by the bits alone
      static_cast<Bf16*>(out.data)[i] = {static_cast<std::uint16_t>((bits + fraction) >> 16)};
      return;
    }
  }
  write(out, i, static_cast<C>(rounded_to(static_cast<double>(x), brain, fraction)));
}

enum class Rule : std::uint8_t { Adam, Sgd, Lion, Round };

/// One step of an optimizer over flat arrays. C: the precision of the update. A thread an element.
template <class C>
struct UpdateParameters : Straight {
  static constexpr int kThreads = 256, kPhases = 1, kEach = 4;
  struct Args {
    Rule rule = Rule::Adam;
    Out param = {}, model = {}, first = {}, second = {};  ///< model, and moments that the rule has not: null
    In grad = {};
    std::int64_t size = 0;
    C grad_scale = 1, weight_decay = 0, decay = 1;  ///< decay: factor of the parameter; weight_decay: added, of L2
    const double* factor = nullptr;                 ///< in place of grad_scale; NaN: nothing changes
    C beta1 = 0, beta2 = 0, rest1 = 0, rest2 = 0;   ///< rest = 1 - beta
    C root_correction2 = 1, eps = 0, rate = 0;      ///< rate: of the direction
    bool plain = false;  ///< Adam, all of it float32 but a copy in `model` of any type, at multiples of 16 bytes
    Rounding rounding = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  static MEGATRON_BOTH C direction_of(const Args& a, std::int64_t i, C p, C scale) {
    C g = read<C>(a.grad, i) * scale;
    if (a.weight_decay != C(0)) g = g + p * a.weight_decay;
    switch (a.rule) {
      case Rule::Adam: {
        const C m = read<C>(a.first, i) * a.beta1 + g * a.rest1;
        const C v = read<C>(a.second, i) * a.beta2 + g * g * a.rest2;
        store_rounded(a.first, i, m, a.rounding, 1);
        store_rounded(a.second, i, v, a.rounding, 2);
        return m / (std::sqrt(v) * a.root_correction2 + a.eps) * a.rate;
      }
      case Rule::Sgd:
        if (a.first.data != nullptr) {
          g = read<C>(a.first, i) * a.beta1 + g;
          store_rounded(a.first, i, g, a.rounding, 1);
        }
        return g * a.rate;
      case Rule::Lion: {
        const C m = read<C>(a.first, i), mixed = m * a.beta1 + g * a.rest1;
        store_rounded(a.first, i, m * a.beta2 + g * a.rest2, a.rounding, 1);
        const C sign = mixed > C(0) ? C(1) : mixed < C(0) ? C(-1) : mixed == C(0) ? C(0) : mixed;
        return sign * a.rate;
      }
      case Rule::Round:
        break;
    }
    return C(0);
  }

  /// Adam's step of four neighbours: the same numbers as one by one, with four times fewer loads.
  static MEGATRON_BOTH void four(const Args& a, std::int64_t i, int count, C scale) {
    C p[kEach], g[kEach], m[kEach], v[kEach];
    auto* const param = static_cast<float*>(a.param.data) + i;
    auto* const first = static_cast<float*>(a.first.data) + i;
    auto* const second = static_cast<float*>(a.second.data) + i;
    load(param, count, p);
    load(static_cast<const float*>(a.grad.data) + i, count, g);
    load(first, count, m);
    load(second, count, v);
    MEGATRON_UNROLL for (int n = 0; n < kEach; ++n) {
      C gradient = g[n] * scale;
      if (a.weight_decay != C(0)) gradient = gradient + p[n] * a.weight_decay;
      m[n] = m[n] * a.beta1 + gradient * a.rest1;
      v[n] = v[n] * a.beta2 + gradient * gradient * a.rest2;
      p[n] = p[n] * a.decay - m[n] / (std::sqrt(v[n]) * a.root_correction2 + a.eps) * a.rate;
    }
    store(first, count, m);
    store(second, count, v);
    store(param, count, p);
    if (a.model.data == nullptr) return;
    if (a.model.type == DType::Bf16)
      store_half(static_cast<Bf16*>(a.model.data) + i, count, p);
    else if (a.model.type == DType::Fp16)
      store_half(static_cast<Fp16*>(a.model.data) + i, count, p);
    else
      for (int n = 0; n < count; ++n) write(a.model, i + n, p[n]);
  }
  template <class T>
  static MEGATRON_BOTH void store_half(T* to, int count, const C (&from)[kEach]) {
#if defined(__CUDA_ARCH__)
    if (count == kEach && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint2*>(to) = make_uint2(narrow_two<T>(from[0], from[1]), narrow_two<T>(from[2], from[3]));
      return;
    }
#endif
    MEGATRON_UNROLL for (int n = 0; n < kEach; ++n) {
      if (n < count) to[n] = narrow<T>(from[n]);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    C scale = a.grad_scale;
    if (a.factor != nullptr) {
      const double factor = *a.factor;
      if (factor != factor) return;
      scale = static_cast<C>(factor);
    }
    if constexpr (sizeof(C) == sizeof(float)) {
      if (a.plain) {
        const std::int64_t i = task_of<UpdateParameters>(at) * kEach;
        if (i < a.size) four(a, i, a.size - i < kEach ? static_cast<int>(a.size - i) : kEach, scale);
        return;
      }
    }
    for (int n = 0; n < kEach; ++n) {
      const std::int64_t i = at.block * kThreads * kEach + n * kThreads + at.thread;
      if (i >= a.size) return;
      const C p = read<C>(a.param, i);
      if (a.rule == Rule::Round) {
        store_rounded(a.model, i, p, a.rounding, 0);
        continue;
      }
      const C direction = direction_of(a, i, p, scale), moved = p * a.decay - direction;
      store_rounded(a.param, i, moved, a.rounding, 0);
      if (a.model.data != nullptr) store_rounded(a.model, i, moved, a.rounding, 0);
    }
  }
};

/// Of each block of kEach elements the sum of squares, or the largest absolute value, in double.
template <class T>
struct Reduce : Straight {
  static constexpr int kThreads = 256, kPhases = 3, kEach = 1 << 14;
  struct Args {
    const T* x = nullptr;
    double* out = nullptr;  ///< [blocks]
    std::int64_t size = 0;
    bool max = false;      ///< else a sum
    bool squares = false;  ///< of squares, else of the elements, which of a maximum are absolute
  };
  struct Shared {
    double part[kThreads], lane[32];
  };
  using Local = Nothing;

  static std::int64_t blocks(std::int64_t size) { return (size + kEach - 1) / kEach; }
  static MEGATRON_BOTH double joined(const Args& a, double one, double other) {
    if (!a.max) return one + other;
    return other > one || other != other ? other : one;  // a NaN stays: nothing is larger
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      const std::int64_t begin = at.block * kEach, size = a.size - begin < kEach ? a.size - begin : kEach;
      double own = 0;
      for (std::int64_t c = at.thread; c < chunks_of<T>(size); c += kThreads) {
        Compute<T> x[kChunk<T>];
        load(a.x + begin + c * kChunk<T>, chunk_size<T>(size, c), x);
        for (int i = 0; i < kChunk<T>; ++i) {
          const double wide = static_cast<double>(x[i]);
          own = joined(a, own, a.squares ? wide * wide : a.max && wide < 0 ? -wide : wide);
        }
      }
      shared.part[at.thread] = own;
    } else if constexpr (kPhase == 1) {
      if (at.thread >= 32) return;
      double lane = shared.part[at.thread];
      for (int i = at.thread + 32; i < kThreads; i += 32) lane = joined(a, lane, shared.part[i]);
      shared.lane[at.thread] = lane;
    } else {
      if (at.thread != 0) return;
      double all = shared.lane[0];
      for (int i = 1; i < 32; ++i) all = joined(a, all, shared.lane[i]);
      a.out[at.block] = all;
    }
  }
};

}  // namespace megatron::kernels::phases
