#pragma once
#include <cstddef>

#include "megatron/kernels/cpu/elementwise/element.h"

// Matrix products of operands of any element type, computed in float32; one call is one piece of work for one thread.
namespace megatron::kernels::cpu {

struct Epilogue;  // epilogue.h

/// Element (i, j) is number i * row + j * column of `data`; one of the strides is 1.
struct Matrix {
  const void* data;
  ElementType type;
  std::ptrdiff_t row, column;
  Matrix transposed() const { return {data, type, column, row}; }
  Matrix at(std::size_t i, std::size_t j) const {
    const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(i) * row + static_cast<std::ptrdiff_t>(j) * column;
    return {static_cast<const char*>(data) + offset * static_cast<std::ptrdiff_t>(element_size(type)), type, row,
            column};
  }
};
/// A matrix that is written to; column is 1.
struct MutableMatrix {
  void* data;
  ElementType type;
  std::ptrdiff_t row;
  MutableMatrix at(std::size_t i, std::size_t j) const {
    const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(i) * row + static_cast<std::ptrdiff_t>(j);
    return {static_cast<char*>(data) + offset * static_cast<std::ptrdiff_t>(element_size(type)), type, row};
  }
};

/// c [rows, columns] = or += a [rows, depth] b [depth, columns].
struct Product {
  std::size_t rows, columns, depth;
  Matrix a, b;
  MutableMatrix c;
  bool accumulate;
};

/// The most rows and columns of c that one call of product_block computes. Each operand is widened to float32 once for
/// every block it takes part in, in pieces that stay in a core's second cache.
inline constexpr std::size_t kBlockRows = 516, kBlockColumns = 512;
/// Scratch of one call, in floats.
inline constexpr std::size_t kProductScratch = [] {
  constexpr std::size_t kDepth = 384, kRowsAtOnce = 96, kGap = 16;  // see product_block
  return kBlockRows * (kBlockColumns + kGap) + kDepth * kBlockColumns + kRowsAtOnce * (kDepth + kGap);
}();
/// A product of at most kBlockRows x kBlockColumns, of any depth. `scratch` is aligned to 64 bytes. Where the epilogue
/// has two halves, `columns` are those of one, at most half as many, and b and c have those of both.
void product_block(const Product& product, const Epilogue& epilogue, float* scratch);
/// c = or += float32 sums [rows, columns], `stride` floats from row to row, rounded to c's type.
void write_sums(const float* sums, std::size_t stride, std::size_t rows, std::size_t columns, const MutableMatrix& c,
                bool accumulate);
/// write_sums() for float32 c that is not read soon, before flush_streams(): whole vectors go around the caches, so
/// that c is not read first where nothing is added to it.
void stream_sums(const float* sums, std::size_t stride, std::size_t rows, std::size_t columns, const MutableMatrix& c,
                 bool accumulate);
/// Ends a thread's calls of stream_sums(): their stores come before its later ones, by which others learn of them.
void flush_streams();

/// The columns of few_rows_product() are best a multiple of it.
inline constexpr std::size_t kFewRowsStep = 12;
/// c = a b where a has few rows and b is a transposed row-major matrix: each row of b^T is read once, from memory, and
/// widened in registers. `a` float32 as arrange_few_rows() leaves it; rows of float32 for float32 b may lie where they
/// are.
void few_rows_product(const Product& product);
/// [rows, depth] of `type`, contiguous, to float32 in the order in which few_rows_product() reads weights.
void arrange_few_rows(const void* from, ElementType type, ElementType weights, float* to, std::size_t rows,
                      std::size_t depth);

}  // namespace megatron::kernels::cpu
