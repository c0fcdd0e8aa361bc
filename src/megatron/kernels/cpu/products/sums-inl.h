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

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
