#pragma once
#include <limits>

#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Rotates heads in place. A thread has a chunk of pairs, or one where rows are not multiples of a chunk. A position
/// that the table does not have gives NaN: where positions are on a GPU the host does not see them.
template <class T>
struct Rotate : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    T* heads = nullptr;  ///< [s, b, n, r, d], the last contiguous
    std::int64_t sizes[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 0};
    Divisor b = {}, n = {}, r = {}, parts = {};  ///< sizes 1 to 3; threads of a head
    const C *cos = nullptr, *sin = nullptr;      ///< [positions, half]
    std::int64_t positions = 0, half = 0;
    const std::int64_t* ids = nullptr;  ///< [b, s] by its strides; null: first + 0, 1, …
    std::int64_t ids_stride_b = 0, ids_stride_s = 0, first = 0;
    bool interleaved = false, inverse = false, chunks = false;
  };
  using Shared = Nothing;
  using Local = Nothing;

  /// Completes the arguments; how many threads there are.
  static std::int64_t prepare(Args& a) {
    bool aligned = reinterpret_cast<std::uintptr_t>(a.heads) % 16 == 0 && a.half % kChunk<T> == 0 && !a.interleaved;
    for (int d = 0; d < 4; ++d) aligned = aligned && (a.sizes[d] == 1 || a.strides[d] % kChunk<T> == 0);
    a.chunks = aligned;
    a.b = Divisor(a.sizes[1]);
    a.n = Divisor(a.sizes[2]);
    a.r = Divisor(a.sizes[3]);
    a.parts = Divisor(aligned ? a.half / kChunk<T> : a.half);
    return a.sizes[0] * a.sizes[1] * a.sizes[2] * a.sizes[3] * a.parts.by;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<Rotate>(at), head_number = a.parts.of(task),
                       part = task - head_number * a.parts.by;
    const std::int64_t above_r = a.r.of(head_number), above_n = a.n.of(above_r), s = a.b.of(above_n);
    if (s >= a.sizes[0]) return;
    const std::int64_t b = above_n - s * a.b.by;
    T* const head = a.heads + s * a.strides[0] + b * a.strides[1] + (above_r - above_n * a.n.by) * a.strides[2] +
                    (head_number - above_r * a.r.by) * a.strides[3];
    const std::int64_t position = a.ids != nullptr ? a.ids[b * a.ids_stride_b + s * a.ids_stride_s] : a.first + s;
    const bool known = position >= 0 && position < a.positions;
    if (a.chunks) return rotate_chunk(a, head, known ? position * a.half : -1, part * kChunk<T>);
    T* const first = head + (a.interleaved ? 2 * part : part);
    T* const second = head + (a.interleaved ? 2 * part + 1 : part + a.half);
    C cos = std::numeric_limits<C>::quiet_NaN(), sin = cos;
    if (known) {
      cos = a.cos[position * a.half + part];
      sin = a.sin[position * a.half + part];
    }
    if (a.inverse) sin = -sin;
    const C x = widen(*first), y = widen(*second);
    *first = narrow<T>(x * cos - y * sin);
    *second = narrow<T>(y * cos + x * sin);
  }

 private:
  static MEGATRON_BOTH void rotate_chunk(const Args& a, T* head, std::int64_t row, std::int64_t i) {
    C x[kChunk<T>], y[kChunk<T>];
    load(head + i, kChunk<T>, x);
    load(head + i + a.half, kChunk<T>, y);
    MEGATRON_UNROLL for (int from = 0; from < kChunk<T>; from += kChunk<C>) {
      C cos[kChunk<C>], sin[kChunk<C>];
      load(a.cos + (row >= 0 ? row + i + from : 0), row >= 0 ? kChunk<C> : 0, cos);
      load(a.sin + (row >= 0 ? row + i + from : 0), row >= 0 ? kChunk<C> : 0, sin);
      MEGATRON_UNROLL for (int e = 0; e < kChunk<C>; ++e) {
        const C c = row >= 0 ? cos[e] : std::numeric_limits<C>::quiet_NaN(), t = a.inverse ? -sin[e] : sin[e];
        const C turned = x[from + e] * c - y[from + e] * t;
        y[from + e] = y[from + e] * c + x[from + e] * t;
        x[from + e] = turned;
      }
    }
    store(head + i, kChunk<T>, x);
    store(head + i + a.half, kChunk<T>, y);
  }
};

}  // namespace megatron::kernels::phases
