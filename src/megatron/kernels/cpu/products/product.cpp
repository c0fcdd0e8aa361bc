#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/product.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <hwy/cache_control.h>

#include <algorithm>

#include "megatron/kernels/cpu/products/epilogue.h"
#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/products/matrix.h"
#include "megatron/kernels/cpu/products/product-inl.h"
#include "megatron/kernels/cpu/products/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

// A panel of b [depth][64] and a few rows of a stay in the first cache, all panels and kRowPiece rows in the second.
constexpr std::size_t kPanelColumns = 64, kDepthPiece = 384, kRowPiece = 96, kRowGap = 16;
static_assert(kBlockRows * (kBlockColumns + kRowGap) + kDepthPiece * kBlockColumns +
                  kRowPiece * (kDepthPiece + kRowGap) <=
              kProductScratch);

template <class Fn>
HWY_INLINE void with_type(ElementType type, const Fn& fn) {
  switch (type) {
    case ElementType::Float32:
      return fn(float{});
    case ElementType::BFloat16:
      return fn(c10::BFloat16{});
    case ElementType::Float16:
      return fn(c10::Half{});
  }
}

/// rows x columns elements, columns side by side, to rows of `stride` floats.
template <class T>
void widen_rows(const T* from, std::ptrdiff_t from_stride, std::size_t rows, std::size_t columns, float* to,
                std::size_t stride) {
  for (std::size_t i = 0; i < rows; ++i, from += from_stride, to += stride)
    for_vectors(columns,
                [=](std::size_t j, std::size_t lanes) HWY_ATTR { store(load(from + j, lanes), to + j, lanes); });
}

/// b [depth, columns] from its transpose (rows of b^T at `stride`), as one panel: rows of 64, zeros behind `columns`.
template <class T>
void transpose_panel(const T* from, std::ptrdiff_t stride, std::size_t depth, std::size_t columns, float* panel) {
  const Floats d;
  F block[kLanes];
  for (std::size_t j = 0; j < kPanelColumns; j += kLanes) {
    for (std::size_t k = 0; k < depth; k += kLanes) {
      const std::size_t count = std::min(kLanes, depth - k);
      for (std::size_t i = 0; i < kLanes; ++i)
        block[i] = j + i < columns ? load(from + static_cast<std::ptrdiff_t>(j + i) * stride + k, count) : hn::Zero(d);
      transpose(block);
      for (std::size_t i = 0; i < count; ++i) hn::StoreU(block[i], d, panel + (k + i) * kPanelColumns + j);
    }
  }
}

/// b [depth, columns] as panels [depth][64], zeros behind `columns`.
void pack_panels(const Matrix& b, std::size_t depth, std::size_t columns, float* to) {
  with_type(b.type, [&]<class T>(T) HWY_ATTR {
    for (std::size_t j = 0; j < columns; j += kPanelColumns, to += depth * kPanelColumns) {
      const std::size_t count = std::min(kPanelColumns, columns - j);
      const Matrix panel = b.at(0, j);
      if (b.column != 1) {
        transpose_panel(static_cast<const T*>(panel.data), b.column, depth, count, to);
      } else {
        widen_rows(static_cast<const T*>(panel.data), b.row, depth, count, to, kPanelColumns);
        for (std::size_t k = 0; k < depth && count < kPanelColumns; ++k)
          std::fill(to + k * kPanelColumns + count, to + (k + 1) * kPanelColumns, 0.0f);
      }
    }
  });
}

/// a [rows, depth] as float32, in the orientation that it has.
Left pack_left(const Matrix& a, std::size_t rows, std::size_t depth, float* to) {
  Left left{};
  with_type(a.type, [&]<class T>(T) HWY_ATTR {
    if (a.column == 1) {
      widen_rows(static_cast<const T*>(a.data), a.row, rows, depth, to, kDepthPiece + kRowGap);
      left = {to, kDepthPiece + kRowGap, 1};
    } else {
      widen_rows(static_cast<const T*>(a.data), a.column, depth, rows, to, kRowPiece);
      left = {to, 1, kRowPiece};
    }
  });
  return left;
}

/// c = or += the float32 sums.
void write(const float* sums, std::size_t stride, std::size_t rows, std::size_t columns, const MutableMatrix& c,
           bool accumulate) {
  with_type(c.type, [&]<class T>(T) HWY_ATTR {
    T* to = static_cast<T*>(c.data);
    for (std::size_t i = 0; i < rows; ++i, sums += stride, to += c.row) {
      for_vectors(columns, [=](std::size_t j, std::size_t lanes) HWY_ATTR {
        const F sum = load(sums + j, lanes);
        store(accumulate ? hn::Add(sum, load(to + j, lanes)) : sum, to + j, lanes);
      });
    }
  });
}

/// c = or += the float32 sums, where a row of float32 c begins at a vector around the caches.
void stream(const float* sums, std::size_t stride, std::size_t rows, std::size_t columns, const MutableMatrix& c,
            bool accumulate) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < rows; ++i, sums += stride) {
    float* const to = static_cast<float*>(c.at(i, 0).data);
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % (lanes * sizeof(float)) == 0;
    const std::size_t whole = aligned ? columns / lanes * lanes : 0;
    for (std::size_t j = 0; j < whole; j += lanes) {
      const F sum = hn::LoadU(d, sums + j);
      hn::Stream(accumulate ? hn::Add(sum, hn::Load(d, to + j)) : sum, d, to + j);
    }
    write(sums + whole, stride, 1, columns - whole, c.at(i, whole), accumulate);
  }
}

void block(const Product& p, const Epilogue& epilogue, float* scratch) {
  constexpr std::size_t kStride = kBlockColumns + kRowGap;
  // Where c is float32 and its vectors are whole, the sums are taken in c itself.
  const bool in_place = p.c.type == ElementType::Float32 && p.columns % 16 == 0;
  float* const sums = in_place ? static_cast<float*>(p.c.data) : scratch;
  const std::size_t stride = in_place ? static_cast<std::size_t>(p.c.row) : kStride;
  float* const panels = scratch + kBlockRows * kStride;
  float* const rows_of_a = panels + kDepthPiece * kBlockColumns;
  const std::size_t pieces = std::max<std::size_t>((p.depth + kDepthPiece - 1) / kDepthPiece, 1);
  const std::size_t halves = epilogue.two_halves() ? 2 : 1, next_half = static_cast<std::size_t>(epilogue.half);
  const std::size_t held = (p.columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  const std::size_t second = in_place ? next_half : held;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t k = p.depth * piece / pieces, depth = p.depth * (piece + 1) / pieces - k;
    const bool accumulate = piece > 0 || (in_place && p.accumulate);
    for (std::size_t half = 0; half < halves; ++half)
      pack_panels(p.b.at(k, half * next_half), depth, p.columns, panels + half * held * depth);
    for (std::size_t i = 0; i < p.rows; i += kRowPiece) {
      const std::size_t rows = std::min(kRowPiece, p.rows - i);
      const Left left = pack_left(p.a.at(i, k), rows, depth, rows_of_a);
      for (std::size_t half = 0; half < halves; ++half) {
        for (std::size_t j = 0; j < p.columns; j += kPanelColumns) {
          const std::size_t columns = std::min(kPanelColumns, (p.columns - j + 15) / 16 * 16);
          product(left, panels + (half * held + j) * depth, kPanelColumns, sums + i * stride + half * second + j,
                  stride, rows, depth, columns, accumulate);
        }
      }
      if (piece + 1 < pieces) continue;
      const Sums done{sums + i * stride, stride, second};
      if (epilogue.kind != Epilogue::Kind::None)
        finish(done, rows, p.columns, p.c.at(i, 0), epilogue.at(i, 0, p.c.type));
      else if (!in_place)
        write(done.data, stride, rows, p.columns, p.c.at(i, 0), p.accumulate);
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(block);
HWY_EXPORT(write);
HWY_EXPORT(stream);

void product_block(const Product& product, const Epilogue& epilogue, float* scratch) {
  HWY_DYNAMIC_DISPATCH(block)(product, epilogue, scratch);
}
void write_sums(const float* sums, std::size_t stride, std::size_t rows, std::size_t columns, const MutableMatrix& c,
                bool accumulate) {
  HWY_DYNAMIC_DISPATCH(write)(sums, stride, rows, columns, c, accumulate);
}
void stream_sums(const float* sums, std::size_t stride, std::size_t rows, std::size_t columns, const MutableMatrix& c,
                 bool accumulate) {
  HWY_DYNAMIC_DISPATCH(stream)(sums, stride, rows, columns, c, accumulate);
}
void flush_streams() { hwy::FlushStream(); }

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
