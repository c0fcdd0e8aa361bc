#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Sums over rows, by group of kRows of them and column: of dy, and of dy times the normed x. A block has a group and a
/// tile of columns.
template <class T>
struct ColumnSums : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 2, kAcross = 16, kDown = kThreads / kAcross, kRows = 128, kAtOnce = 4;
  static constexpr int kColumns = kAcross * kChunk<T>;
  struct Args {
    const T *dy = nullptr, *x = nullptr;          ///< x null: sums of dy alone
    const C *mean = nullptr, *rstd = nullptr;     ///< mean null: of a root-mean-square norm
    double *products = nullptr, *sums = nullptr;  ///< [groups, h]; each may be null
    std::int64_t rows = 0, h = 0;
  };
  struct Shared {
    C products[kDown][kColumns], sums[kDown][kColumns];
  };
  using Local = Nothing;

  static std::int64_t groups(std::int64_t rows) { return (rows + kRows - 1) / kRows; }
  static MEGATRON_BOTH std::int64_t tiles(std::int64_t h) { return (h + kColumns - 1) / kColumns; }

  /// Adds kAtOnce rows, all of which are asked for before the first is looked at.
  static MEGATRON_BOTH void add_rows(const Args& a, std::int64_t first, std::int64_t end, std::int64_t column,
                                     int count, C (&products)[kChunk<T>], C (&sums)[kChunk<T>]) {
    Chunk<T> dy[kAtOnce] = {}, stored[kAtOnce] = {};
    C mean[kAtOnce] = {}, rstd[kAtOnce] = {};
    MEGATRON_UNROLL for (int r = 0; r < kAtOnce; ++r) {
      const std::int64_t row = first + r * kDown;
      if (row >= end) continue;
      dy[r] = load_chunk(a.dy + row * a.h + column, count);
      if (a.x == nullptr) continue;
      stored[r] = load_chunk(a.x + row * a.h + column, count);
      if (a.mean != nullptr) mean[r] = a.mean[row];
      rstd[r] = a.rstd[row];
    }
    MEGATRON_UNROLL for (int r = 0; r < kAtOnce; ++r) {
      if (first + r * kDown >= end) continue;
      C g[kChunk<T>], x[kChunk<T>];
      unpack(dy[r], g);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) sums[i] += g[i];
      if (a.x == nullptr) continue;
      unpack(stored[r], x);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) products[i] += g[i] * ((x[i] - mean[r]) * rstd[r]);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    const std::int64_t group = at.block / tiles(a.h), first = at.block % tiles(a.h) * kColumns;
    if constexpr (kPhase == 0) {
      const int across = at.thread % kAcross, down = at.thread / kAcross;
      const std::int64_t column = first + across * kChunk<T>;
      const int count = chunk_size<T>(a.h, column / kChunk<T>);
      const std::int64_t end = (group + 1) * kRows < a.rows ? (group + 1) * kRows : a.rows;
      C products[kChunk<T>] = {}, sums[kChunk<T>] = {};
      if (count > 0)
        for (std::int64_t row = group * kRows + down; row < end; row += kDown * kAtOnce)
          add_rows(a, row, end, column, count, products, sums);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
        shared.products[down][across * kChunk<T> + i] = products[i];
        shared.sums[down][across * kChunk<T> + i] = sums[i];
      }
    } else {
      if (at.thread >= kColumns || first + at.thread >= a.h) return;
      double product = 0, sum = 0;
      for (int down = 0; down < kDown; ++down) {
        product += shared.products[down][at.thread];
        sum += shared.sums[down][at.thread];
      }
      const std::int64_t place = group * a.h + first + at.thread;
      if (a.products != nullptr) a.products[place] = product;
      if (a.sums != nullptr) a.sums[place] = sum;
    }
  }
};

/// gradient[column] (= or +=) the sum of the groups' sums, of up to kMost gradients of as many columns. A block has a
/// tile of columns of one, a thread some groups of a column.
struct FinishColumnSums : Straight {
  static constexpr int kThreads = 256, kPhases = 2, kAcross = 16, kDown = kThreads / kAcross, kMost = 3;
  struct Args {
    In sums = {};              ///< [gradients, groups, h]
    Out gradient[kMost] = {};  ///< of no memory: that one is not wanted
    bool add[kMost] = {};
    std::int64_t groups = 0, h = 0;
  };
  struct Shared {
    double part[kDown][kAcross];
  };
  using Local = Nothing;

  /// Of one gradient.
  static MEGATRON_BOTH std::int64_t blocks(std::int64_t h) { return (h + kAcross - 1) / kAcross; }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    const int across = at.thread % kAcross, down = at.thread / kAcross;
    const auto which = static_cast<int>(at.block / blocks(a.h));
    const std::int64_t column = at.block % blocks(a.h) * kAcross + across;
    const Out gradient = a.gradient[which];
    if (column >= a.h || gradient.data == nullptr) return;
    if constexpr (kPhase == 0) {
      double sum = 0;
      for (std::int64_t group = down; group < a.groups; group += kDown)
        sum += read<double>(a.sums, (which * a.groups + group) * a.h + column);
      shared.part[down][across] = sum;
    } else {
      if (down != 0) return;
      double sum = 0;
      for (int i = 0; i < kDown; ++i) sum += shared.part[i][across];
      if (gradient.type == DType::F64) {
        write(gradient, column, a.add[which] ? read<double>(gradient, column) + sum : sum);
      } else {
        const float single = static_cast<float>(sum);
        write(gradient, column, a.add[which] ? read<float>(gradient, column) + single : single);
      }
    }
  }
};

}  // namespace megatron::kernels::phases
