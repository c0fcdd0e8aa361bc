#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/skinny_product.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <type_traits>

#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/products/matrix.h"
#include "megatron/kernels/cpu/products/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kWeightRows = 4;                           // weight rows read side by side
constexpr std::size_t kInputRows = HWY_MAX_BYTES >= 64 ? 4 : 2;  // as many sums as the registers hold
constexpr std::size_t kCacheLine = 64;

/// Elements of a weight row that are read at a time. Of bf16 a vector gives two: the even elements moved to the upper
/// halves of its words, and the odd ones, which are there, without the lower halves. The input lies in that order
/// (arrange); what is left of a row, behind whole lines, in its own.
template <class W>
constexpr std::size_t kLine = kCacheLine / sizeof(W);
template <class W>
constexpr bool kInPairs = std::is_same_v<W, c10::BFloat16>;

/// Into the second cache: more lines may be under way to it than to the first.
HWY_INLINE void ask_for(const void* p) { __builtin_prefetch(p, 0, 2); }

/// y [kRows, kCount] = x [kRows, depth] times the transpose of w [kCount, depth]. Asks memory for the rows after these.
template <std::size_t kRows, std::size_t kCount, class W, class Y>
HWY_INLINE void dots(const float* x, std::ptrdiff_t x_stride, const W* w, std::size_t w_stride, std::size_t depth, Y* y,
                     std::ptrdiff_t y_stride) {
  const std::size_t lanes = hn::Lanes(Floats());
  const W* const next = w + kCount * w_stride;
  RowSums<kRows, kCount> sums;
  RowVectors<kCount> weights;
  sums.clear();
  std::size_t k = 0;
  for (; k + kLine<W> <= depth; k += kLine<W>) {
    for (std::size_t i = 0; i < kCount; ++i) ask_for(next + i * w_stride + k);
    if constexpr (kInPairs<W>) {
      for (std::size_t v = k; v < k + kLine<W>; v += 2 * lanes) {
        weights.load_even(w + v, w_stride);
        sums.multiply_add(x + v, x_stride, lanes, weights);
        weights.load_odd(w + v, w_stride);
        sums.multiply_add(x + v + lanes, x_stride, lanes, weights);
      }
    } else {
      for (std::size_t v = k; v < k + kLine<W>; v += lanes) {
        weights.load_rows(w + v, w_stride, lanes);
        sums.multiply_add(x + v, x_stride, lanes, weights);
      }
    }
  }
  for (; k < depth; k += lanes) {
    const std::size_t count = depth - k < lanes ? depth - k : lanes;
    weights.load_rows(w + k, w_stride, count);
    sums.multiply_add(x + k, x_stride, count, weights);
  }
  sums.store_sums(y, y_stride);
}

template <std::size_t kCount, class W, class Y>
HWY_INLINE void all_rows(const Product& p, std::size_t column, const W* w) {
  const auto* x = static_cast<const float*>(p.a.data);
  Y* y = static_cast<Y*>(p.c.data) + column;
  const std::size_t w_stride = static_cast<std::size_t>(p.b.column);
  std::size_t i = 0;
  for (; i + kInputRows <= p.rows; i += kInputRows, x += kInputRows * p.a.row, y += kInputRows * p.c.row)
    dots<kInputRows, kCount>(x, p.a.row, w, w_stride, p.depth, y, p.c.row);
  for (; i < p.rows; ++i, x += p.a.row, y += p.c.row) dots<1, kCount>(x, p.a.row, w, w_stride, p.depth, y, p.c.row);
}

// With so many rows of the input the arithmetic on float32 takes longer than reading: twelve sums use all registers of
// AVX2. Measured: 8 and 16 rows gain, fewer do not, and neither do weights of 16 bits.
constexpr std::size_t kManyRows = 8, kManyWeightRows = 6, kTwoRows = 2;
static_assert(kFewRowsStep % kManyWeightRows == 0);

/// y [kRows, kManyWeightRows] as of dots(). With kAsks memory is asked for the rows of w after these.
template <std::size_t kRows, bool kAsks, class Y>
HWY_INLINE void many_dots(const float* x, std::ptrdiff_t x_stride, const float* w, std::ptrdiff_t w_stride,
                          std::size_t depth, Y* y, std::ptrdiff_t y_stride) {
  constexpr auto kRowsOfWeight = static_cast<std::ptrdiff_t>(kManyWeightRows);
  HeldSums<kManyWeightRows, kRows> sums;
  RowVectors<kRows> inputs;
  sums.clear();
  std::size_t k = 0;
  for (; k + 2 * kLanes <= depth; k += 2 * kLanes) {  // a line of the cache
    if constexpr (kAsks)
      for (std::ptrdiff_t i = 0; i < kRowsOfWeight; ++i) ask_for(w + (kRowsOfWeight + i) * w_stride + k);
    inputs.load_rows(x + k, static_cast<std::size_t>(x_stride), kLanes);
    sums.multiply_add(w + k, w_stride, kLanes, inputs);
    inputs.load_rows(x + k + kLanes, static_cast<std::size_t>(x_stride), kLanes);
    sums.multiply_add(w + k + kLanes, w_stride, kLanes, inputs);
  }
  for (; k < depth; k += kLanes) {
    const std::size_t count = depth - k < kLanes ? depth - k : kLanes;
    inputs.load_rows(x + k, static_cast<std::size_t>(x_stride), count);
    sums.multiply_add(w + k, w_stride, count, inputs);
  }
  sums.store_columns(y, y_stride);
}

/// Rows two by two, every other time from the last to the first: the first of them are in the first cache still.
template <class Y>
HWY_INLINE void many_rows(const Product& p, std::size_t column, const float* w) {
  const std::size_t last = (p.rows - 1) / kTwoRows;
  const bool backwards = column / kManyWeightRows % 2 == 1;
  for (std::size_t n = 0; n <= last; ++n) {
    const std::size_t i = (backwards ? last - n : n) * kTwoRows;
    const float* x = static_cast<const float*>(p.a.data) + static_cast<std::ptrdiff_t>(i) * p.a.row;
    Y* y = static_cast<Y*>(p.c.data) + static_cast<std::ptrdiff_t>(i) * p.c.row + column;
    if (i + 1 == p.rows)
      many_dots<1, true>(x, p.a.row, w, p.b.column, p.depth, y, p.c.row);
    else if (n == 0)
      many_dots<kTwoRows, true>(x, p.a.row, w, p.b.column, p.depth, y, p.c.row);
    else
      many_dots<kTwoRows, false>(x, p.a.row, w, p.b.column, p.depth, y, p.c.row);
  }
}

template <class W, class Y>
void all_columns(const Product& p) {
  const W* w = static_cast<const W*>(p.b.data);
  std::size_t j = 0;
  if constexpr (std::is_same_v<W, float> && HWY_MAX_BYTES == 32)
    if (p.rows >= kManyRows)
      for (; j + kManyWeightRows <= p.columns;
           j += kManyWeightRows, w += kManyWeightRows * static_cast<std::size_t>(p.b.column))
        many_rows<Y>(p, j, w);
  for (; j + kWeightRows <= p.columns; j += kWeightRows, w += static_cast<std::ptrdiff_t>(kWeightRows) * p.b.column)
    all_rows<kWeightRows, W, Y>(p, j, w);
  for (; j < p.columns; ++j, w += p.b.column) all_rows<1, W, Y>(p, j, w);
}

template <class W>
void to_type(const Product& p) {
  switch (p.c.type) {
    case ElementType::Float32:
      return all_columns<W, float>(p);
    case ElementType::BFloat16:
      return all_columns<W, c10::BFloat16>(p);
    case ElementType::Float16:
      return all_columns<W, c10::Half>(p);
  }
}

void few_rows(const Product& p) {
  switch (p.b.type) {
    case ElementType::Float32:
      return to_type<float>(p);
    case ElementType::BFloat16:
      return to_type<c10::BFloat16>(p);
    case ElementType::Float16:
      return to_type<c10::Half>(p);
  }
}

/// A row of the input in float32, in the order in which rows of W are read.
template <class W, class T>
void arrange_row(const T* from, float* to, std::size_t depth) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t k = 0;
  if constexpr (kInPairs<W>)
    for (const std::size_t whole = depth / kLine<W> * kLine<W>; k < whole; k += 2 * lanes) {
      const F a = load(from + k, lanes), b = load(from + k + lanes, lanes);
      hn::StoreU(hn::ConcatEven(d, b, a), d, to + k);
      hn::StoreU(hn::ConcatOdd(d, b, a), d, to + k + lanes);
    }
  for_vectors(depth - k,
              [=](std::size_t i, std::size_t count) HWY_ATTR { store(load(from + k + i, count), to + k + i, count); });
}

template <class T>
void arrange_rows(const void* from_any, ElementType weights, float* to, std::size_t rows, std::size_t depth) {
  const T* from = static_cast<const T*>(from_any);
  const auto row = weights == ElementType::BFloat16 ? arrange_row<c10::BFloat16, T> : arrange_row<float, T>;
  for (std::size_t i = 0; i < rows; ++i) row(from + i * depth, to + i * depth, depth);
}

void arrange(const void* from, ElementType type, ElementType weights, float* to, std::size_t rows, std::size_t depth) {
  switch (type) {
    case ElementType::Float32:
      return arrange_rows<float>(from, weights, to, rows, depth);
    case ElementType::BFloat16:
      return arrange_rows<c10::BFloat16>(from, weights, to, rows, depth);
    case ElementType::Float16:
      return arrange_rows<c10::Half>(from, weights, to, rows, depth);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(few_rows);
HWY_EXPORT(arrange);

void few_rows_product(const Product& product) { HWY_DYNAMIC_DISPATCH(few_rows)(product); }
void arrange_few_rows(const void* from, ElementType type, ElementType weights, float* to, std::size_t rows,
                      std::size_t depth) {
  HWY_DYNAMIC_DISPATCH(arrange)(from, type, weights, to, rows, depth);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
