// Vectors of weights and rows of sums in registers, for products that read each weight once.
#if defined(MEGATRON_KERNELS_CPU_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_SUMS_INL_H_
#undef MEGATRON_KERNELS_CPU_SUMS_INL_H_
#else
#define MEGATRON_KERNELS_CPU_SUMS_INL_H_
#endif

#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

HWY_INLINE F even_of(const c10::BFloat16* p) {
  const hn::RebindToUnsigned<Floats> words;
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(p))));
}
HWY_INLINE F odd_of(const c10::BFloat16* p) {
  const hn::RebindToUnsigned<Floats> words;
  const auto upper = hn::Set(words, 0xFFFF0000u);
  return hn::BitCast(Floats(), hn::And(hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(p)), upper));
}

/// kCount vectors, by recursion so that each stays in a register.
template <std::size_t kCount>
struct RowVectors {
  F first;
  RowVectors<kCount - 1> rest;

  HWY_INLINE void clear() {
    first = hn::Zero(Floats());
    rest.clear();
  }
  template <class T>
  HWY_INLINE void load_rows(const T* p, std::size_t stride, std::size_t lanes) {
    first = load(p, lanes);
    rest.load_rows(p + stride, stride, lanes);
  }
  HWY_INLINE void load_even(const c10::BFloat16* p, std::size_t stride) {
    first = even_of(p);
    rest.load_even(p + stride, stride);
  }
  HWY_INLINE void load_odd(const c10::BFloat16* p, std::size_t stride) {
    first = odd_of(p);
    rest.load_odd(p + stride, stride);
  }
  HWY_INLINE void multiply_add(F x, const RowVectors& w) {
    first = hn::MulAdd(x, w.first, first);
    rest.multiply_add(x, w.rest);
  }
  template <class T>
  HWY_INLINE void store_sums(T* to) const {
    *to = static_cast<T>(sum_of_lanes(first));
    rest.store_sums(to + 1);
  }
  template <class T>
  HWY_INLINE void store_column(T* to, std::ptrdiff_t stride) const {
    *to = static_cast<T>(sum_of_lanes(first));
    rest.store_column(to + stride, stride);
  }
};
template <>
struct RowVectors<0> {
  HWY_INLINE void clear() {}
  template <class T>
  HWY_INLINE void load_rows(const T*, std::size_t, std::size_t) {}
  HWY_INLINE void load_even(const c10::BFloat16*, std::size_t) {}
  HWY_INLINE void load_odd(const c10::BFloat16*, std::size_t) {}
  HWY_INLINE void multiply_add(F, const RowVectors&) {}
  template <class T>
  HWY_INLINE void store_sums(T*) const {}
  template <class T>
  HWY_INLINE void store_column(T*, std::ptrdiff_t) const {}
};

/// kRows rows of kCount sums.
template <std::size_t kRows, std::size_t kCount>
struct RowSums {
  RowVectors<kCount> row;
  RowSums<kRows - 1, kCount> rest;

  HWY_INLINE void clear() {
    row.clear();
    rest.clear();
  }
  HWY_INLINE void multiply_add(const float* x, std::ptrdiff_t stride, std::size_t lanes, const RowVectors<kCount>& w) {
    row.multiply_add(load(x, lanes), w);
    rest.multiply_add(x + stride, stride, lanes, w);
  }
  template <class T>
  HWY_INLINE void store_sums(T* to, std::ptrdiff_t stride) const {
    row.store_sums(to);
    rest.store_sums(to + stride, stride);
  }
};
template <std::size_t kCount>
struct RowSums<0, kCount> {
  HWY_INLINE void clear() {}
  HWY_INLINE void multiply_add(const float*, std::ptrdiff_t, std::size_t, const RowVectors<kCount>&) {}
  template <class T>
  HWY_INLINE void store_sums(T*, std::ptrdiff_t) const {}
};

/// Has v in a register: short of them, GCC would else read it from memory for each of its uses, and that takes longer
/// than the products.
HWY_INLINE void keep([[maybe_unused]] F& v) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
}

#if HWY_MAX_BYTES == 32
/// sum_of_lanes() of four vectors, to the bit.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sums_of_four(F a, F b, F c, F e) {
  const Floats d;
  const hn::Repartition<std::uint64_t, Floats> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a)));
  const auto ce = hn::BitCast(pairs, hn::Add(hn::ConcatLowerLower(d, e, c), hn::ConcatUpperUpper(d, e, c)));
  const F two = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)),
                        hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));  // of a, c, b, e: two lanes each
  const F one = hn::Add(two, hn::Shuffle2301(two));
  const hn::Half<Floats> half;
  return hn::OddEven(hn::UpperHalf(half, one), hn::LowerHalf(half, one));
}

/// The sums of four rows' vectors, to columns side by side.
template <std::size_t kCount, class T>
HWY_INLINE void store_fours(const RowVectors<kCount>& a, const RowVectors<kCount>& b, const RowVectors<kCount>& c,
                            const RowVectors<kCount>& e, T* to, std::ptrdiff_t stride) {
  if constexpr (kCount > 0) {
    const hn::FixedTag<float, 4> four;
    alignas(16) float sums[4];
    hn::Store(sums_of_four(a.first, b.first, c.first, e.first), four, sums);
    for (std::size_t i = 0; i < 4; ++i) to[i] = static_cast<T>(sums[i]);
    store_fours(a.rest, b.rest, c.rest, e.rest, to + stride, stride);
  }
}
#endif

/// The same sums the other way round: the kCount vectors are held, and the rows read one vector at a time, so that
/// beside the sums and the vectors one register is enough.
template <std::size_t kRows, std::size_t kCount>
struct HeldSums {
  RowVectors<kCount> row;
  HeldSums<kRows - 1, kCount> rest;

  HWY_INLINE void clear() {
    row.clear();
    rest.clear();
  }
  /// Row i += `lanes` elements at p + i * stride times each of `held`.
  template <class T>
  HWY_INLINE void multiply_add(const T* p, std::ptrdiff_t stride, std::size_t lanes, const RowVectors<kCount>& held) {
    F x = load(p, lanes);
    if constexpr (kCount > 1) keep(x);
    row.multiply_add(x, held);
    rest.multiply_add(p + stride, stride, lanes, held);
  }
  /// Row i to column i of `to`, whose rows are of the held vectors.
  template <class T>
  HWY_INLINE void store_columns(T* to, std::ptrdiff_t stride) const {
#if HWY_MAX_BYTES == 32
    if constexpr (kRows >= 4) {
      store_fours(row, rest.row, rest.rest.row, rest.rest.rest.row, to, stride);
      return rest.rest.rest.rest.store_columns(to + 4, stride);
    }
#endif
    row.store_column(to, stride);
    rest.store_columns(to + 1, stride);
  }
};
template <std::size_t kCount>
struct HeldSums<0, kCount> {
  HWY_INLINE void clear() {}
  template <class T>
  HWY_INLINE void multiply_add(const T*, std::ptrdiff_t, std::size_t, const RowVectors<kCount>&) {}
  template <class T>
  HWY_INLINE void store_columns(T*, std::ptrdiff_t) const {}
};

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
