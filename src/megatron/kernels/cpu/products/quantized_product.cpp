#include "megatron/kernels/cpu/products/quantized_product.h"

#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/quantized_product.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <algorithm>

#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/products/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kBlockLevels = 32;   // with one scale
constexpr std::size_t kScalesAtOnce = 16;  // of each row, widened together
constexpr std::size_t kRowsOfLevels = 4;   // read side by side
constexpr std::size_t kRowsOfInput = HWY_MAX_BYTES >= 64 ? 4 : 2;

/// Into the second cache, as skinny_product.cpp does.
HWY_INLINE void prefetch_levels(const void* p) { __builtin_prefetch(p, 0, 2); }

/// `count` scales, at most kScalesAtOnce, in float32.
HWY_INLINE void widen_scales(const std::uint16_t* from, std::size_t count, float* to) {
  const auto* halves = reinterpret_cast<const c10::Half*>(from);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) HWY_ATTR { store(load(halves + i, lanes), to + i, lanes); });
}

/// y [kRows, kCount] = x [kRows, depth] times kCount rows of w. Asks memory for the rows after these.
template <std::size_t kRows, std::size_t kCount, class Y>
HWY_INLINE void quantized_dots(const float* x, const QuantizedRows& w, Y* y, std::ptrdiff_t y_stride) {
  const std::size_t lanes = hn::Lanes(Floats()), depth = w.depth, blocks = depth / kBlockLevels;
  const std::int8_t* const next = w.levels + kCount * depth;
  alignas(64) float scales[kCount * kScalesAtOnce];
  RowSums<kRows, kCount> sums;
  RowVectors<kCount> weights;
  sums.clear();
  for (std::size_t first = 0; first < blocks; first += kScalesAtOnce) {
    const std::size_t count = blocks - first < kScalesAtOnce ? blocks - first : kScalesAtOnce;
    for (std::size_t i = 0; i < kCount; ++i)
      widen_scales(w.scales + i * blocks + first, count, scales + i * kScalesAtOnce);
    for (std::size_t b = 0; b < count; ++b) {
      const std::size_t k = (first + b) * kBlockLevels;
      if (b % 2 == 0)
        for (std::size_t i = 0; i < kCount; ++i) prefetch_levels(next + i * depth + k);
      for (std::size_t v = k; v < k + kBlockLevels; v += lanes) {
        weights.load_levels(w.levels + v, depth, scales + b, kScalesAtOnce);
        sums.multiply_add(x + v, static_cast<std::ptrdiff_t>(depth), lanes, weights);
      }
    }
  }
  sums.store_sums(y, y_stride);
}

template <std::size_t kCount, class Y>
HWY_INLINE void all_inputs(const float* x, std::size_t rows, const QuantizedRows& w, Y* y, std::ptrdiff_t y_stride) {
  std::size_t i = 0;
  for (; i + kRowsOfInput <= rows; i += kRowsOfInput, x += kRowsOfInput * w.depth, y += kRowsOfInput * y_stride)
    quantized_dots<kRowsOfInput, kCount>(x, w, y, y_stride);
  for (; i < rows; ++i, x += w.depth, y += y_stride) quantized_dots<1, kCount>(x, w, y, y_stride);
}

template <class Y>
void all_outputs(const float* x, std::size_t rows, const QuantizedRows& w, const MutableMatrix& c) {
  Y* const y = static_cast<Y*>(c.data);
  std::size_t j = 0;
  for (; j + kRowsOfLevels <= w.rows; j += kRowsOfLevels)
    all_inputs<kRowsOfLevels>(x, rows, w.at(j, kRowsOfLevels), y + j, c.row);
  for (; j < w.rows; ++j) all_inputs<1>(x, rows, w.at(j, 1), y + j, c.row);
}

void quantized(const float* x, std::size_t rows, const QuantizedRows& w, const MutableMatrix& c) {
  switch (c.type) {
    case ElementType::Float32:
      return all_outputs<float>(x, rows, w, c);
    case ElementType::BFloat16:
      return all_outputs<c10::BFloat16>(x, rows, w, c);
    case ElementType::Float16:
      return all_outputs<c10::Half>(x, rows, w, c);
  }
}

template <class T>
void widen_to(const QuantizedRows& w, T* to) {
  const std::size_t lanes = hn::Lanes(Floats()), blocks = w.rows * (w.depth / kBlockLevels);
  alignas(64) float scales[kScalesAtOnce];
  for (std::size_t first = 0; first < blocks; first += kScalesAtOnce) {
    const std::size_t count = std::min(blocks - first, kScalesAtOnce);
    widen_scales(w.scales + first, count, scales);
    for (std::size_t b = 0; b < count; ++b)
      for (std::size_t v = (first + b) * kBlockLevels; v < (first + b + 1) * kBlockLevels; v += lanes)
        store(hn::Mul(levels_of(w.levels + v), hn::Set(Floats(), scales[b])), to + v, lanes);
  }
}

void widen_rows(const QuantizedRows& w, void* to, ElementType type) {
  switch (type) {
    case ElementType::Float32:
      return widen_to(w, static_cast<float*>(to));
    case ElementType::BFloat16:
      return widen_to(w, static_cast<c10::BFloat16*>(to));
    case ElementType::Float16:
      return widen_to(w, static_cast<c10::Half*>(to));
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(quantized);
HWY_EXPORT(widen_rows);

void quantized_product(const float* x, std::size_t rows, const QuantizedRows& w, const MutableMatrix& c) {
  HWY_DYNAMIC_DISPATCH(quantized)(x, rows, w, c);
}
void widen(const QuantizedRows& w, void* to, ElementType type) { HWY_DYNAMIC_DISPATCH(widen_rows)(w, to, type); }

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
