#pragma once
#include <cstdint>

#include "megatron/kernels/phases/kernel.h"

// Kernels whose phases are run by warps instead of threads (At::thread is the warp): what they do with tensor cores.
// clang-format off
// They are written for a warp W, of which the device has one lane in a thread (cuda/warp.cuh), and the host all 32
// (emulated/warp.h):
//
//   W::Lanes<T>                           a T of each lane, x[lane]
//   W::each(f)                            f(lane) for the lanes
//   W::each_afresh(f)                     the same; nothing that is made of the lane is kept until the next call
//   W::exchange(to, from, mask)           to[lane] = from[lane ^ mask]
//   W::load_matrices(to, address)         four matrices of 8 x 8 (ldmatrix.x4): lanes 8 i to 8 i + 7 give the addresses
//                                         of the rows of matrix i, lane l gets elements 2 (l % 4) and the next of row
//                                         l / 4 of each
//   W::load_matrices_transposed(...)      of each matrix transposed
//   W::mma<T>(c, a, b0, b1)               c += a b (mma.m16n8k16), in float32
//   W::copy(to, from, there)              begins a copy of 16 bytes to shared memory, zeros where not `there`
//   W::copy_word(to, from, there)         of 4 bytes
//   W::wait()                             until the lanes' copies are over; others see them behind a barrier
//   W::pack<T>(low, high), W::unpack<T>   two numbers rounded to T in a word, and back
//   W::exp2(x), log2, inverse, larger(x, y)
//   W::multiply(a, b, low, high)          the 64 bits of a product
// clang-format on
//
// Such a kernel has kWarps, kPhases, kRepeatFrom and kRepeatTo, Args, Shared, template <class W> Local, how many
// kBlocks a multiprocessor is to hold, and
//
//   template <int kPhase, class W> static void run(const Args&, const At&, Shared&, Local<W>&);
//
// where Local says in `rounds`, before they begin, how often the repeated phases run.
namespace megatron::kernels::phases {

template <class W>
using Number = typename W::template Lanes<float>;
template <class W>
using Word = typename W::template Lanes<std::uint32_t>;

/// Rows of kD elements of 16 bits in chunks of 8. A chunk's place depends on its row, so that the same chunk of eight
/// rows is in all banks.
template <class T, int kRows, int kD>
struct SharedTile {
  static constexpr int kChunks = kD / 8;
  static_assert(kChunks % 8 == 0 && sizeof(T) == 2);
  alignas(16) T values[kRows * kD];

  MEGATRON_BOTH T* chunk(int row, int c) { return values + 8 * (row * kChunks + (c ^ (row & 7))); }
  /// Of a row below 16: place_of(row, c) ^ c' is the place of chunk c ^ c' of it; at() is the same chunk so many rows
  /// on.
  static MEGATRON_BOTH int place_of(int row, int c) { return row * kChunks + (c ^ (row & 7)); }
  MEGATRON_BOTH const T* at(int rows_on, int place) const { return values + 8 * (rows_on * kChunks + place); }
};

/// Sums of products as mma holds them: of a tile 16 x 8, lane l has row l / 4 + 8 (e / 2) and column 2 (l % 4) + e % 2
/// as e = 0 .. 3. kTiles tiles below one another, kColumns side by side.
template <class W, int kTiles, int kColumns>
struct Products {
  Number<W> at[kTiles][kColumns][4];

  MEGATRON_BOTH void clear() {
    W::each([&](int lane) {
      MEGATRON_UNROLL
      for (int m = 0; m < kTiles; ++m) MEGATRON_UNROLL
      for (int j = 0; j < kColumns; ++j) MEGATRON_UNROLL
      for (int e = 0; e < 4; ++e) at[m][j][e][lane] = 0;
    });
  }

  /// += x y^T of 16 kTiles rows of x from `row` on, and all of y.
  template <class T, int kRows, int kD>
  MEGATRON_BOTH void add(const SharedTile<T, kRows, kD>& x, int row, const SharedTile<T, 8 * kColumns, kD>& y) {
    typename W::template Lanes<int> of_x, of_y;
    W::each_afresh([&](int lane) {
      of_x[lane] = x.place_of(lane % 16, lane / 16);
      of_y[lane] = y.place_of(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    });
    MEGATRON_UNROLL
    for (int step = 0; step < kD / 16; ++step) {
      Word<W> a[kTiles][4];
      MEGATRON_UNROLL
      for (int m = 0; m < kTiles; ++m)
        W::load_matrices(a[m], [&](int lane) { return x.at(row + 16 * m, of_x[lane] ^ 2 * step); });
      MEGATRON_UNROLL
      for (int j = 0; j < kColumns; j += 2) {
        Word<W> b[4];
        W::load_matrices(b, [&](int lane) { return y.at(8 * j, of_y[lane] ^ 2 * step); });
        MEGATRON_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          W::template mma<T>(at[m][j], a[m], b[0], b[1]);
          W::template mma<T>(at[m][j + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  /// += x y, x rounded to T.
  template <class T, int kInner>
  MEGATRON_BOTH void add(const Products<W, kTiles, kInner>& x, const SharedTile<T, 8 * kInner, 8 * kColumns>& y) {
    typename W::template Lanes<int> of_y;
    W::each_afresh([&](int lane) { of_y[lane] = y.place_of(lane % 16, lane / 16); });
    MEGATRON_UNROLL
    for (int j = 0; j < kInner; j += 2) {
      Word<W> a[kTiles][4];
      W::each([&](int lane) {
        MEGATRON_UNROLL
        for (int m = 0; m < kTiles; ++m) MEGATRON_UNROLL
        for (int i = 0; i < 4; ++i) {
          const auto& from = x.at[m][j + i / 2];
          a[m][i][lane] = W::template pack<T>(from[i % 2 * 2][lane], from[i % 2 * 2 + 1][lane]);
        }
      });
      MEGATRON_UNROLL
      for (int n = 0; n < kColumns; n += 2) {
        Word<W> b[4];
        W::load_matrices_transposed(b, [&](int lane) { return y.at(8 * j, of_y[lane] ^ n); });
        MEGATRON_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          W::template mma<T>(at[m][n], a[m], b[0], b[1]);
          W::template mma<T>(at[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

/// Every lane gets what `of` makes of the values of the lanes whose numbers differ in bits below `width`.
template <class W, class T, class Of>
MEGATRON_BOTH void reduce(typename W::template Lanes<T>& x, int width, const Of& of) {
  MEGATRON_UNROLL
  for (int mask = 1; mask < width; mask *= 2) {
    typename W::template Lanes<T> other;
    W::exchange(other, x, mask);
    W::each([&](int lane) { x[lane] = of(x[lane], other[lane]); });
  }
}

}  // namespace megatron::kernels::phases
