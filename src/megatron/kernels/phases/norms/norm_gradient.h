#pragma once
#include "megatron/kernels/phases/norms/normalization.h"

namespace megatron::kernels::phases {

/// dx of a norm, and what flows past it. A block a row.
template <class T>
struct NormInputGradient : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 128, kPhases = 3, kN = kChunk<T>;
  struct Args {
    const T *dy = nullptr, *x = nullptr, *weight = nullptr, *residual_gradient = nullptr;
    const C *mean = nullptr, *rstd = nullptr;  ///< mean null: of a root-mean-square norm
    T* dx = nullptr;
    std::int64_t h = 0;
  };
  /// Of a block of so many threads.
  template <int kOfThreads>
  struct Memory {
    Chunk<T> dy[kKeptChunks], x[kKeptChunks];
    BlockSum<C, kOfThreads> gradient, product;

    MEGATRON_BOTH void fold(int thread) {
      gradient.fold(thread);
      product.fold(thread);
    }
  };
  using Shared = Memory<kThreads>;
  using Local = Nothing;

  /// Of a chunk of a row: dy, and x normed.
  static MEGATRON_BOTH void chunk(const Args& a, std::int64_t row, const Chunk<T>& dy, const Chunk<T>& x, C (&g)[kN],
                                  C (&normed)[kN]) {
    const C mean = a.mean != nullptr ? a.mean[row] : C(0), rstd = a.rstd[row];
    unpack(dy, g);
    unpack(x, normed);
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) normed[i] = (normed[i] - mean) * rstd;
  }

  /// The thread's part of the row's sums. Keeps the row.
  template <int kOfThreads>
  static MEGATRON_BOTH void part_of_sums(const Args& a, std::int64_t row, int thread, Memory<kOfThreads>& shared) {
    C gradient = 0, product = 0;
    for (std::int64_t c = thread; c < chunks_of<T>(a.h); c += kOfThreads) {
      const std::int64_t first = c * kN;
      const int count = chunk_size<T>(a.h, c);
      const Chunk<T> dy = load_chunk(a.dy + row * a.h + first, count), x = load_chunk(a.x + row * a.h + first, count);
      if (c < kKeptChunks) {
        shared.dy[c] = dy;
        shared.x[c] = x;
      }
      C g[kN], normed[kN], weight[kN];
      chunk(a, row, dy, x, g, normed);
      load(a.weight + first, count, weight);
      MEGATRON_UNROLL for (int i = 0; i < kN; ++i) {
        if (i >= count) continue;
        gradient += g[i] * weight[i];
        product += g[i] * weight[i] * normed[i];
      }
    }
    shared.gradient.part[thread] = gradient;
    shared.product.part[thread] = product;
  }

  /// Writes the thread's chunks of dx: see(chunk, dy, normed) before, where dy is 0 behind the row, and
  /// written(chunk, count, dx) behind it.
  template <int kOfThreads, class See, class Written>
  static MEGATRON_BOTH void write(const Args& a, std::int64_t row, int thread, Memory<kOfThreads>& shared,
                                  const See& see, const Written& written) {
    const C size = static_cast<C>(a.h), rstd = a.rstd[row], mean_product = shared.product.total() / size;
    const C mean_gradient = a.mean != nullptr ? shared.gradient.total() / size : C(0);
    for (std::int64_t c = thread; c < chunks_of<T>(a.h); c += kOfThreads) {
      const std::int64_t first = c * kN, place = row * a.h + first;
      const int count = chunk_size<T>(a.h, c);
      C g[kN], normed[kN], weight[kN], past[kN] = {};
      chunk(a, row, c < kKeptChunks ? shared.dy[c] : load_chunk(a.dy + place, count),
            c < kKeptChunks ? shared.x[c] : load_chunk(a.x + place, count), g, normed);
      see(c, g, normed);
      load(a.weight + first, count, weight);
      if (a.residual_gradient != nullptr) load(a.residual_gradient + place, count, past);
      MEGATRON_UNROLL for (int i = 0; i < kN; ++i) g[i] =
          (g[i] * weight[i] - mean_gradient - normed[i] * mean_product) * rstd + past[i];
      const Chunk<T> dx = packed<T>(g);
      store_chunk(a.dx + place, count, dx);
      written(c, count, dx);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0)
      part_of_sums<kThreads>(a, at.block, at.thread, shared);
    else if constexpr (kPhase == 1)
      shared.fold(at.thread);
    else
      write<kThreads>(
          a, at.block, at.thread, shared, [](std::int64_t, const C(&)[kN], const C(&)[kN]) {},
          [](std::int64_t, int, const Chunk<T>&) {});
  }
};

/// The way back through a norm and the addition before it: NormInputGradient, dropout, and sums over kRows rows of what
/// the parameters' gradients are made of, which a block keeps in shared memory. A block goes through its rows one after
/// the other; a thread has the same columns of each.
template <class T>
struct AddNormGradient : Straight {
  using C = Compute<T>;
  using Input = NormInputGradient<T>;
  static constexpr int kThreads = 256, kPhases = 5, kRepeatFrom = 1, kRepeatTo = 4, kRows = 16, kN = kChunk<T>;
  /// Bytes of them: with Shared less than the 99 KiB that a block may have on the smallest GPUs.
  static constexpr std::int64_t kMostSums = 78 * 1024;
  struct Args {
    typename Input::Args norm;
    T* branch = nullptr;  ///< what dropout leaves of dx; null: nothing is dropped
    Mask mask = {};
    Divisor batch = {};
    C* sums =
        nullptr;  ///< [kinds, groups, h]: of dy times x normed, of dy where the norm is a layer norm, of the branch
    bool branch_bias = false;  ///< the branch's sums are wanted
    std::int64_t rows = 0;

    MEGATRON_BOTH int kinds() const { return 1 + (norm.mean != nullptr ? 1 : 0) + (branch_bias ? 1 : 0); }
  };
  using Shared = typename Input::template Memory<kThreads>;
  using Local = Nothing;
  static_assert(kMostSums + sizeof(Shared) <= 99 * 1024);

  static MEGATRON_BOTH std::int64_t groups(std::int64_t rows) { return (rows + kRows - 1) / kRows; }
  static MEGATRON_BOTH std::int64_t extra_bytes(const Args& a) {
    return a.kinds() * chunks_of<T>(a.norm.h) * kN * static_cast<std::int64_t>(sizeof(C));
  }
  static MEGATRON_BOTH int repeats(const Args& a, std::int64_t block) {
    const std::int64_t left = a.rows - block * kRows;
    return left < kRows ? static_cast<int>(left) : kRows;
  }

  /// Where element 0 of chunk `chunk` of a kind's sums is; each next one is chunks_of(h) behind: neighbouring threads
  /// read neighbouring numbers.
  static MEGATRON_BOTH C* sums_of(const Args& a, Shared& shared, int kind, std::int64_t chunk) {
    return reinterpret_cast<C*>(&shared + 1) + kind * chunks_of<T>(a.norm.h) * kN + chunk;
  }
  static MEGATRON_BOTH void add(const Args& a, Shared& shared, int kind, std::int64_t chunk, const C (&x)[kN]) {
    C* const sums = sums_of(a, shared, kind, chunk);
    const std::int64_t step = chunks_of<T>(a.norm.h);
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) sums[i * step] += x[i];
  }

  /// Of one chunk of a row whose gradient is dx, the branch.
  static MEGATRON_BOTH void leave(const Args& a, Shared& shared, std::int64_t row, std::int64_t chunk, int count,
                                  const Chunk<T>& dx) {
    const std::int64_t first = chunk * kN;
    C x[kN], factors[kN];
    unpack(dx, x);
    if (a.branch != nullptr) {
      const std::int64_t position = a.batch.of(row);
      a.mask.factors(row - position * a.batch.by, a.mask.element(position, first), factors);
      MEGATRON_UNROLL for (int i = 0; i < kN; ++i) x[i] = x[i] * factors[i];
      const Chunk<T> dropped = packed<T>(x);
      store_chunk(a.branch + row * a.norm.h + first, count, dropped);
      unpack(dropped, x);
    }
    if (!a.branch_bias) return;
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) x[i] = i < count ? x[i] : C(0);
    add(a, shared, a.kinds() - 1, chunk, x);
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    const std::int64_t h = a.norm.h, row = at.block * kRows + at.round;
    if constexpr (kPhase == 0) {
      const C zeros[kN] = {};
      for (std::int64_t c = at.thread; c < chunks_of<T>(h); c += kThreads)
        for (int kind = 0; kind < a.kinds(); ++kind) {
          C* const sums = sums_of(a, shared, kind, c);
          MEGATRON_UNROLL for (int i = 0; i < kN; ++i) sums[i * chunks_of<T>(h)] = zeros[i];
        }
    } else if constexpr (kPhase == 1) {
      Input::template part_of_sums<kThreads>(a.norm, row, at.thread, shared);
    } else if constexpr (kPhase == 2) {
      shared.fold(at.thread);
    } else if constexpr (kPhase == 3) {
      Input::template write<kThreads>(
          a.norm, row, at.thread, shared,
          [&](std::int64_t chunk, const C(&dy)[kN], const C(&normed)[kN]) {
            C product[kN];
            MEGATRON_UNROLL for (int i = 0; i < kN; ++i) product[i] = dy[i] * normed[i];
            add(a, shared, 0, chunk, product);
            if (a.norm.mean != nullptr) add(a, shared, 1, chunk, dy);
          },
          [&](std::int64_t chunk, int count, const Chunk<T>& dx) { leave(a, shared, row, chunk, count, dx); });
    } else {
      for (std::int64_t c = at.thread; c < chunks_of<T>(h); c += kThreads)
        for (int kind = 0; kind < a.kinds(); ++kind) {
          const C* const sums = sums_of(a, shared, kind, c);
          C* const to = a.sums + (kind * groups(a.rows) + at.block) * h + c * kN;
          MEGATRON_UNROLL for (int i = 0; i < kN; ++i) {
            if (c * kN + i < h) to[i] = sums[i * chunks_of<T>(h)];
          }
        }
    }
  }
};

}  // namespace megatron::kernels::phases
