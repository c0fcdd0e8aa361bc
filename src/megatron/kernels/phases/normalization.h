#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// x = mask * (x + bias) + residual, then the norm of that; or the norm of x alone. A block a row.
template <class T>
struct AddNorm : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 128, kPhases = 5;
  struct Args {
    const T* x = nullptr;
    T* sum = nullptr;  ///< may be x; null: no addition
    const T *bias = nullptr, *residual = nullptr;
    const T *weight = nullptr, *norm_bias = nullptr;
    T* y = nullptr;
    C *mean = nullptr, *rstd = nullptr;
    std::int64_t h = 0, batch = 1;
    C eps = 0;
    bool rms = false;
    Mask mask = {};
  };
  struct Shared {
    BlockSum<C, kThreads> sum;
  };
  struct Local {
    C mean;
  };

  static MEGATRON_BOTH C part_of_sum(const Args& a, const At& at) {
    const std::int64_t row = at.block * a.h;
    C part = 0;
    Words words = a.mask.on ? a.mask.words(at.block % a.batch) : Words{};
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.h); c += kThreads) {
      const std::int64_t first = c * kChunk<T>;
      const int count = chunk_size<T>(a.h, c);
      C x[kChunk<T>];
      load(a.x + row + first, count, x);
      if (a.sum != nullptr) {
        C residual[kChunk<T>], bias[kChunk<T>] = {};
        load(a.residual + row + first, count, residual);
        if (a.bias != nullptr) load(a.bias + first, count, bias);
        for (int i = 0; i < kChunk<T>; ++i) {
          if (i >= count) continue;
          C value = x[i];
          if (a.bias != nullptr) value = value + bias[i];
          if (a.mask.on)
            value = value * static_cast<C>(a.mask.of(words, a.mask.element(at.block / a.batch, first + i)));
          x[i] = widen(narrow<T>(value + residual[i]));
        }
        store(a.sum + row + first, count, x);
      }
      for (int i = 0; i < kChunk<T>; ++i) part += x[i];
    }
    return part;
  }
  static MEGATRON_BOTH C part_of_squares(const Args& a, const At& at, C mean) {
    const T* const row = (a.sum != nullptr ? a.sum : a.x) + at.block * a.h;
    C part = 0;
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.h); c += kThreads) {
      const int count = chunk_size<T>(a.h, c);
      C x[kChunk<T>];
      load(row + c * kChunk<T>, count, x);
      for (int i = 0; i < kChunk<T>; ++i)
        if (i < count) part += (x[i] - mean) * (x[i] - mean);
    }
    return part;
  }
  static MEGATRON_BOTH void write_row(const Args& a, const At& at, C mean, C rstd) {
    const T* const row = (a.sum != nullptr ? a.sum : a.x) + at.block * a.h;
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.h); c += kThreads) {
      const std::int64_t first = c * kChunk<T>;
      const int count = chunk_size<T>(a.h, c);
      C x[kChunk<T>], weight[kChunk<T>], bias[kChunk<T>] = {};
      load(row + first, count, x);
      load(a.weight + first, count, weight);
      if (!a.rms) load(a.norm_bias + first, count, bias);
      for (int i = 0; i < kChunk<T>; ++i) {
        x[i] = (x[i] - mean) * rstd * weight[i];
        if (!a.rms) x[i] = x[i] + bias[i];
      }
      store(a.y + at.block * a.h + first, count, x);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    if constexpr (kPhase == 0) {
      shared.sum.part[at.thread] = part_of_sum(a, at);
    } else if constexpr (kPhase == 1 || kPhase == 3) {
      shared.sum.fold(at.thread);
    } else if constexpr (kPhase == 2) {
      local.mean = a.rms ? C(0) : shared.sum.total() / static_cast<C>(a.h);
      shared.sum.part[at.thread] = part_of_squares(a, at, local.mean);
    } else {
      const C rstd = C(1) / std::sqrt(shared.sum.total() / static_cast<C>(a.h) + a.eps);
      write_row(a, at, local.mean, rstd);
      if (at.thread == 0) {
        a.rstd[at.block] = rstd;
        if (!a.rms) a.mean[at.block] = local.mean;
      }
    }
  }
};

/// dx of a norm, and what flows past it. A block a row.
template <class T>
struct NormInputGradient : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 128, kPhases = 3;
  struct Args {
    const T *dy = nullptr, *x = nullptr, *weight = nullptr, *residual_gradient = nullptr;
    const C *mean = nullptr, *rstd = nullptr;  ///< mean null: of a root-mean-square norm
    T* dx = nullptr;
    std::int64_t h = 0;
  };
  struct Shared {
    BlockSum<C, kThreads> gradient, product;
  };
  using Local = Nothing;

  /// Calls visit(first, count, gw, normed) for each chunk of this thread.
  template <class Visit>
  static MEGATRON_BOTH void each(const Args& a, const At& at, const Visit& visit) {
    const std::int64_t row = at.block * a.h;
    const C mean = a.mean != nullptr ? a.mean[at.block] : C(0), rstd = a.rstd[at.block];
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.h); c += kThreads) {
      const std::int64_t first = c * kChunk<T>;
      const int count = chunk_size<T>(a.h, c);
      C g[kChunk<T>], x[kChunk<T>], weight[kChunk<T>];
      load(a.dy + row + first, count, g);
      load(a.x + row + first, count, x);
      load(a.weight + first, count, weight);
      for (int i = 0; i < kChunk<T>; ++i) {
        g[i] = g[i] * weight[i];
        x[i] = (x[i] - mean) * rstd;
      }
      visit(first, count, g, x);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      C gradient = 0, product = 0;
      each(a, at, [&](std::int64_t, int count, const C(&gw)[kChunk<T>], const C(&normed)[kChunk<T>]) {
        for (int i = 0; i < kChunk<T>; ++i) {
          if (i >= count) continue;
          gradient += gw[i];
          product += gw[i] * normed[i];
        }
      });
      shared.gradient.part[at.thread] = gradient;
      shared.product.part[at.thread] = product;
    } else if constexpr (kPhase == 1) {
      shared.gradient.fold(at.thread);
      shared.product.fold(at.thread);
    } else {
      const C size = static_cast<C>(a.h), rstd = a.rstd[at.block], mean_product = shared.product.total() / size;
      const C mean_gradient = a.mean != nullptr ? shared.gradient.total() / size : C(0);
      each(a, at, [&](std::int64_t first, int count, C(&gw)[kChunk<T>], const C(&normed)[kChunk<T>]) {
        C past[kChunk<T>] = {};
        if (a.residual_gradient != nullptr) load(a.residual_gradient + at.block * a.h + first, count, past);
        for (int i = 0; i < kChunk<T>; ++i) gw[i] = (gw[i] - mean_gradient - normed[i] * mean_product) * rstd + past[i];
        store(a.dx + at.block * a.h + first, count, gw);
      });
    }
  }
};

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

/// out = mask * (x + bias) + residual, of which each may be absent. A thread a chunk.
template <class T>
struct BiasDropoutAdd : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    const T *x = nullptr, *bias = nullptr, *residual = nullptr;
    T* out = nullptr;  ///< may be x
    std::int64_t rows = 0, h = 0, batch = 1;
    Mask mask = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<BiasDropoutAdd>(at), chunks = chunks_of<T>(a.h), row = task / chunks;
    if (row >= a.rows) return;
    const std::int64_t chunk = task % chunks, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    C x[kChunk<T>], bias[kChunk<T>], residual[kChunk<T>];
    load(a.x + row * a.h + first, count, x);
    if (a.bias != nullptr) load(a.bias + first, count, bias);
    if (a.residual != nullptr) load(a.residual + row * a.h + first, count, residual);
    Words words = a.mask.on ? a.mask.words(row % a.batch) : Words{};
    for (int i = 0; i < kChunk<T>; ++i) {
      if (i >= count) continue;
      if (a.bias != nullptr) x[i] = x[i] + bias[i];
      if (a.mask.on) x[i] = x[i] * static_cast<C>(a.mask.of(words, a.mask.element(row / a.batch, first + i)));
      if (a.residual != nullptr) x[i] = x[i] + residual[i];
    }
    store(a.out + row * a.h + first, count, x);
  }
};

/// The mask itself, of an activation (rows are positions and batch) or of attention's probabilities: then a row is a
/// query of a head of a sample, and element 0 of the row is number `row % rows_of_sample` * h.
template <class T>
struct WriteMask : Straight {
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    T* out = nullptr;
    std::int64_t rows = 0, h = 0, batch = 1;
    std::int64_t rows_of_sample = 0;  ///< 0: of an activation
    Mask mask = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<WriteMask>(at), chunks = chunks_of<T>(a.h), row = task / chunks;
    if (row >= a.rows) return;
    const std::int64_t chunk = task % chunks, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    const bool activation = a.rows_of_sample == 0;
    Words words = a.mask.words(activation ? row % a.batch : row / a.rows_of_sample);
    const std::int64_t position = activation ? row / a.batch : row % a.rows_of_sample;
    Compute<T> x[kChunk<T>] = {};
    for (int i = 0; i < kChunk<T>; ++i)
      if (i < count) x[i] = static_cast<Compute<T>>(a.mask.of(words, a.mask.element(position, first + i)));
    store(a.out + row * a.h + first, count, x);
  }
};

}  // namespace megatron::kernels::phases
