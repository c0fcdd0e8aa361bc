// Rows of any element type from memory to float32, as they are or transposed, and back.
#if defined(MEGATRON_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ROWS_INL_H_
#undef MEGATRON_KERNELS_CPU_ROWS_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <algorithm>

#include <cstddef>

#include "megatron/kernels/cpu/elementwise/element.h"
#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/products/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

constexpr std::size_t kPanel = 64;  // rows of a transposed panel

/// Asks for the `size` elements of a row that is read soon: rows of one head lie too far apart for the processor to
/// see what comes next.
template <class T>
HWY_INLINE void ask_for_row(const std::byte* row, std::size_t size) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < size * sizeof(T); at += kLine) hwy::Prefetch(row + at);
}
constexpr std::size_t kRowsAhead = 16;
/// ask_for_row() for the second cache, by bytes: of a row that is read or written after the products that come first.
HWY_INLINE void ask_for_later(const std::byte* row, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 2);
}

template <class T>
void read_rows_of(const std::byte* from, std::ptrdiff_t position, std::size_t rows, std::size_t size, float* to,
                  std::size_t to_stride) {
  for (std::size_t r = 0; r < rows; ++r, from += position, to += to_stride) {
    const T* row = reinterpret_cast<const T*>(from);
    if (r + kRowsAhead < rows) ask_for_row<T>(from + static_cast<std::ptrdiff_t>(kRowsAhead) * position, size);
    for_vectors(size, [=](std::size_t c, std::size_t lanes) HWY_ATTR { store(load(row + c, lanes), to + c, lanes); });
    for (std::size_t c = size; c < to_stride; ++c) to[c] = 0.0f;
  }
}

/// rows x size of `from`, rows `position` bytes apart, to rows of `to_stride` (zeros behind `size`).
inline void read_rows(ElementType type, const std::byte* from, std::ptrdiff_t position, std::size_t rows,
                      std::size_t size, float* to, std::size_t to_stride) {
  switch (type) {
    case ElementType::Float32:
      return read_rows_of<float>(from, position, rows, size, to, to_stride);
    case ElementType::BFloat16:
      return read_rows_of<c10::BFloat16>(from, position, rows, size, to, to_stride);
    case ElementType::Float16:
      return read_rows_of<c10::Half>(from, position, rows, size, to, to_stride);
  }
}

template <class T>
void write_rows_of(const float* from, std::size_t stride, std::size_t rows, std::size_t size, std::byte* to,
                   std::ptrdiff_t position) {
  for (std::size_t r = 0; r < rows; ++r, from += stride, to += position) {
    T* row = reinterpret_cast<T*>(to);
    if (r + kRowsAhead < rows) ask_for_row<T>(to + static_cast<std::ptrdiff_t>(kRowsAhead) * position, size);
    for_vectors(size, [=](std::size_t c, std::size_t lanes) HWY_ATTR { store(load(from + c, lanes), row + c, lanes); });
  }
}

/// The inverse of read_rows.
inline void write_rows(ElementType type, const float* from, std::size_t stride, std::size_t rows, std::size_t size,
                       std::byte* to, std::ptrdiff_t position) {
  switch (type) {
    case ElementType::Float32:
      return write_rows_of<float>(from, stride, rows, size, to, position);
    case ElementType::BFloat16:
      return write_rows_of<c10::BFloat16>(from, stride, rows, size, to, position);
    case ElementType::Float16:
      return write_rows_of<c10::Half>(from, stride, rows, size, to, position);
  }
}

template <class T>
void read_transposed_of(const std::byte* from, std::ptrdiff_t position, std::size_t rows, std::size_t size, float* to) {
  F block[kLanes];
  for (std::size_t r0 = 0; r0 < rows; r0 += kPanel, to += size * kPanel) {
    for (std::size_t r = 0; r < kPanel; r += kLanes) {
      for (std::size_t i = r0 + r + kRowsAhead; i < std::min(rows, r0 + r + kRowsAhead + kLanes); ++i)
        ask_for_row<T>(from + static_cast<std::ptrdiff_t>(i) * position, size);
      for (std::size_t c = 0; c < size; c += kLanes) {
        const std::size_t count = std::min(kLanes, size - c);
        for (std::size_t i = 0; i < kLanes; ++i) {
          const std::byte* row = from + static_cast<std::ptrdiff_t>(r0 + r + i) * position;
          block[i] = r0 + r + i < rows ? load(reinterpret_cast<const T*>(row) + c, count) : hn::Zero(Floats());
        }
        transpose(block);
        for (std::size_t i = 0; i < count; ++i) hn::StoreU(block[i], Floats(), to + (c + i) * kPanel + r);
      }
    }
  }
}

/// The transpose of rows x size in panels of 64 rows: panel [size][64], zeros for rows past the last.
inline void read_transposed(ElementType type, const std::byte* from, std::ptrdiff_t position, std::size_t rows,
                            std::size_t size, float* to) {
  switch (type) {
    case ElementType::Float32:
      return read_transposed_of<float>(from, position, rows, size, to);
    case ElementType::BFloat16:
      return read_transposed_of<c10::BFloat16>(from, position, rows, size, to);
    case ElementType::Float16:
      return read_transposed_of<c10::Half>(from, position, rows, size, to);
  }
}

/// A row that is written two vectors at a time: float32 numbers.
struct FloatRow {
  using RowExp = Exp;  ///< what its numbers are made by
  float* at;
  HWY_INLINE void put(std::size_t j, F first, F second) const {
    hn::StoreU(first, Floats(), at + j);
    hn::StoreU(second, Floats(), at + j + kLanes);
  }
};
constexpr std::size_t kPairOfVectors = 2 * kLanes;  // that kernels of rows take at a time

/// Zeros in [begin, end), multiples of kPairOfVectors.
template <class Row>
HWY_INLINE void put_zeros(const Row& row, std::size_t begin, std::size_t end) {
  for (; begin < end; begin += kPairOfVectors) row.put(begin, hn::Zero(Floats()), hn::Zero(Floats()));
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
