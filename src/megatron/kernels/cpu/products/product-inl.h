// Small matrix products whose operands are in cache: C = A B or C += A B for the blocks of attention. B may be stored
// in halves.
#if defined(MEGATRON_KERNELS_CPU_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_PRODUCT_INL_H_
#undef MEGATRON_KERNELS_CPU_PRODUCT_INL_H_
#else
#define MEGATRON_KERNELS_CPU_PRODUCT_INL_H_
#endif

#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

/// The left operand: element (row, k) at data[row * row_stride + k * k_stride], so that a transposed one needs no copy.
struct Left {
  const float* data;
  std::size_t row_stride, k_stride;
};

constexpr std::size_t kTileRows = 6;  // accumulators that fit the registers with their operands
constexpr std::size_t kTileVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;

/// kCount vectors side by side, by recursion so that each is a variable of its own and stays in a register.
template <std::size_t kCount>
struct Row {
  F first;
  Row<kCount - 1> rest;

  HWY_INLINE void clear() {
    first = hn::Zero(Floats());
    rest.clear();
  }
  template <class T>
  HWY_INLINE void read(const T* p) {
    first = load(p, kLanes);
    rest.read(p + kLanes);
  }
  HWY_INLINE void add(const float* p) {
    first = hn::Add(first, hn::LoadU(Floats(), p));
    rest.add(p + hn::Lanes(Floats()));
  }
  HWY_INLINE void store(float* p) const {
    hn::StoreU(first, Floats(), p);
    rest.store(p + hn::Lanes(Floats()));
  }
  HWY_INLINE void multiply_add(F left, const Row& right) {
    first = hn::MulAdd(left, right.first, first);
    rest.multiply_add(left, right.rest);
  }
};
template <>
struct Row<0> {
  HWY_INLINE void clear() {}
  template <class T>
  HWY_INLINE void read(const T*) {}
  HWY_INLINE void add(const float*) {}
  HWY_INLINE void store(float*) const {}
  HWY_INLINE void multiply_add(F, const Row&) {}
};

/// kRows rows of kVectors vectors of C.
template <std::size_t kRows, std::size_t kVectors>
struct Tile {
  Row<kVectors> row;
  Tile<kRows - 1, kVectors> rest;

  HWY_INLINE void clear() {
    row.clear();
    rest.clear();
  }
  HWY_INLINE void add(const float* c, std::size_t stride) {
    row.add(c);
    rest.add(c + stride, stride);
  }
  HWY_INLINE void store(float* c, std::size_t stride) const {
    row.store(c);
    rest.store(c + stride, stride);
  }
  HWY_INLINE void multiply_add(const float* left, std::size_t stride, const Row<kVectors>& right) {
    row.multiply_add(hn::Set(Floats(), *left), right);
    rest.multiply_add(left + stride, stride, right);
  }
};
template <std::size_t kVectors>
struct Tile<0, kVectors> {
  HWY_INLINE void clear() {}
  HWY_INLINE void add(const float*, std::size_t) {}
  HWY_INLINE void store(float*, std::size_t) const {}
  HWY_INLINE void multiply_add(const float*, std::size_t, const Row<kVectors>&) {}
};

template <std::size_t kRows, std::size_t kVectors, class T>
HWY_INLINE void product_tile(const Left& a, const T* HWY_RESTRICT b, std::size_t b_stride, float* HWY_RESTRICT c,
                             std::size_t c_stride, std::size_t depth, bool accumulate) {
  Tile<kRows, kVectors> sum;
  sum.clear();
  const float* left = a.data;
  for (std::size_t k = 0; k < depth; ++k, left += a.k_stride, b += b_stride) {
    Row<kVectors> right;
    right.read(b);
    sum.multiply_add(left, a.row_stride, right);
  }
  if (accumulate) sum.add(c, c_stride);  // last: one chain of sums over a long depth would round each term to the whole
  sum.store(c, c_stride);
}

/// At most kRows rows of one column tile, all at once.
template <std::size_t kRows, std::size_t kVectors, class T>
HWY_INLINE void product_rest(const Left& a, const T* b, std::size_t b_stride, float* c, std::size_t c_stride,
                             std::size_t rows, std::size_t depth, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return product_tile<kRows, kVectors>(a, b, b_stride, c, c_stride, depth, accumulate);
    product_rest<kRows - 1, kVectors>(a, b, b_stride, c, c_stride, rows, depth, accumulate);
  }
}

/// All rows of one column tile.
template <std::size_t kVectors, class T>
HWY_INLINE void product_columns(Left a, const T* b, std::size_t b_stride, float* c, std::size_t c_stride,
                                std::size_t rows, std::size_t depth, bool accumulate) {
  for (; rows >= kTileRows; rows -= kTileRows, a.data += kTileRows * a.row_stride, c += kTileRows * c_stride) {
    product_tile<kTileRows, kVectors>(a, b, b_stride, c, c_stride, depth, accumulate);
  }
  product_rest<kTileRows - 1, kVectors>(a, b, b_stride, c, c_stride, rows, depth, accumulate);
}

/// C [rows, columns] = or += A [rows, depth] B [depth, columns]; `columns` is a multiple of 16.
template <class T>
void product(const Left& a, const T* b, std::size_t b_stride, float* c, std::size_t c_stride, std::size_t rows,
             std::size_t depth, std::size_t columns, bool accumulate) {
  const std::size_t lanes = hn::Lanes(Floats()), tile = kTileVectors * lanes;
  std::size_t j = 0;
  if (rows <= kTileRows / 2)  // half as many rows leave registers for tiles twice as wide
    for (; j + 2 * tile <= columns; j += 2 * tile)
      product_rest<kTileRows / 2, 2 * kTileVectors>(a, b + j, b_stride, c + j, c_stride, rows, depth, accumulate);
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
