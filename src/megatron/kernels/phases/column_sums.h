#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Sums over rows, by group of kRows of them and column: of dy, and of dy times the normed x. A block has a group and a
/// tile of columns.
template <class T>
struct ColumnSums : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 2, kAcross = 16, kDown = kThreads / kAcross, kRows = 128;
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
        for (std::int64_t row = group * kRows + down; row < end; row += kDown) {
          C g[kChunk<T>];
          load(a.dy + row * a.h + column, count, g);
          for (int i = 0; i < kChunk<T>; ++i) sums[i] += g[i];
          if (a.x == nullptr) continue;
          const C mean = a.mean != nullptr ? a.mean[row] : C(0), rstd = a.rstd[row];
          C x[kChunk<T>];
          load(a.x + row * a.h + column, count, x);
          for (int i = 0; i < kChunk<T>; ++i)
            if (i < count) products[i] += g[i] * ((x[i] - mean) * rstd);
        }
      for (int i = 0; i < kChunk<T>; ++i) {
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

/// gradient[column] (= or +=) the sum of the groups' sums, a thread a column.
struct FinishColumnSums : Straight {
  static constexpr int kThreads = 128, kPhases = 1;
  struct Args {
    const double* sums = nullptr;  ///< [groups, h]
    Out gradient = {};
    std::int64_t groups = 0, h = 0;
    bool add = false;
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t column = task_of<FinishColumnSums>(at);
    if (column >= a.h) return;
    double sum = 0;
    for (std::int64_t group = 0; group < a.groups; ++group) sum += a.sums[group * a.h + column];
    if (a.gradient.type == DType::F64) {
      write(a.gradient, column, a.add ? read<double>(a.gradient, column) + sum : sum);
    } else {
      const float single = static_cast<float>(sum);
      write(a.gradient, column, a.add ? read<float>(a.gradient, column) + single : single);
    }
  }
};

}  // namespace megatron::kernels::phases
