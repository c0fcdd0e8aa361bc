// Small matrix products whose operands are in cache: C = A B or C += A B for the blocks of attention.
#if defined(MEGATRON_KERNELS_CPU_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_PRODUCT_INL_H_
#undef MEGATRON_KERNELS_CPU_PRODUCT_INL_H_
#else
#define MEGATRON_KERNELS_CPU_PRODUCT_INL_H_
#endif

#include "megatron/kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

/// The left operand: element (row, k) at data[row * row_stride + k * k_stride], so that a transposed one needs no copy.
struct Left {
  const float* data;
  std::size_t row_stride, k_stride;
};

constexpr std::size_t kTileRows = 6;  // accumulators that fit the registers with their operands
constexpr std::size_t kTileVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;

/// kRows x kVectors vectors of C in registers; b and c point at the tile's first column.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void product_tile(const Left& a, const float* HWY_RESTRICT b, std::size_t b_stride, float* HWY_RESTRICT c,
                             std::size_t c_stride, std::size_t depth, bool accumulate) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  F sum[kRows][kVectors];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v)
      sum[r][v] = accumulate ? hn::LoadU(d, c + r * c_stride + v * lanes) : hn::Zero(d);
  }
  const float* row = a.data;
  for (std::size_t k = 0; k < depth; ++k, row += a.k_stride, b += b_stride) {
    F right[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
    for (std::size_t r = 0; r < kRows; ++r) {
      const F left = hn::Set(d, row[r * a.row_stride]);
      for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * c_stride + v * lanes);
  }
}

/// All rows of one column tile.
template <std::size_t kVectors>
HWY_INLINE void product_columns(Left a, const float* b, std::size_t b_stride, float* c, std::size_t c_stride,
                                std::size_t rows, std::size_t depth, bool accumulate) {
  for (; rows >= kTileRows; rows -= kTileRows, a.data += kTileRows * a.row_stride, c += kTileRows * c_stride) {
    product_tile<kTileRows, kVectors>(a, b, b_stride, c, c_stride, depth, accumulate);
  }
  for (; rows >= 2; rows -= 2, a.data += 2 * a.row_stride, c += 2 * c_stride) {
    product_tile<2, kVectors>(a, b, b_stride, c, c_stride, depth, accumulate);
  }
  if (rows == 1) product_tile<1, kVectors>(a, b, b_stride, c, c_stride, depth, accumulate);
}

/// C [rows, columns] = or += A [rows, depth] B [depth, columns]; `columns` is a multiple of 16.
inline void product(const Left& a, const float* b, std::size_t b_stride, float* c, std::size_t c_stride,
                    std::size_t rows, std::size_t depth, std::size_t columns, bool accumulate) {
  const std::size_t lanes = hn::Lanes(Floats()), tile = kTileVectors * lanes;
  std::size_t j = 0;
  for (; j + tile <= columns; j += tile) {
    product_columns<kTileVectors>(a, b + j, b_stride, c + j, c_stride, rows, depth, accumulate);
  }
  for (; j + 2 * lanes <= columns; j += 2 * lanes) {
    product_columns<2>(a, b + j, b_stride, c + j, c_stride, rows, depth, accumulate);
  }
  for (; j < columns; j += lanes) product_columns<1>(a, b + j, b_stride, c + j, c_stride, rows, depth, accumulate);
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
