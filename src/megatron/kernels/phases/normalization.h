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

}  // namespace megatron::kernels::phases
