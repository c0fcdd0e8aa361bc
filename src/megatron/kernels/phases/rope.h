#pragma once
#include <limits>

#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Rotates heads in place. A thread a pair. A position that the table does not have gives NaN: where positions are on
/// a GPU the host does not see them.
template <class T>
struct Rotate : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    T* heads = nullptr;  ///< [s, b, n, r, d], the last contiguous
    std::int64_t sizes[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 0};
    const C *cos = nullptr, *sin = nullptr;  ///< [positions, half]
    std::int64_t positions = 0, half = 0;
    const std::int64_t* ids = nullptr;  ///< [b, s] by its strides; null: first + 0, 1, …
    std::int64_t ids_stride_b = 0, ids_stride_s = 0, first = 0;
    bool interleaved = false, inverse = false;
  };
  using Shared = Nothing;
  using Local = Nothing;

  static std::int64_t tasks(const Args& a) { return a.sizes[0] * a.sizes[1] * a.sizes[2] * a.sizes[3] * a.half; }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    std::int64_t task = task_of<Rotate>(at);
    const std::int64_t i = task % a.half;
    task /= a.half;
    std::int64_t index[4];
    for (int d = 3; d >= 0; --d) {
      index[d] = task % a.sizes[d];
      task /= a.sizes[d];
    }
    if (task != 0) return;
    T* const head =
        a.heads + index[0] * a.strides[0] + index[1] * a.strides[1] + index[2] * a.strides[2] + index[3] * a.strides[3];
    const std::int64_t position =
        a.ids != nullptr ? a.ids[index[1] * a.ids_stride_b + index[0] * a.ids_stride_s] : a.first + index[0];
    T* const first = head + (a.interleaved ? 2 * i : i);
    T* const second = head + (a.interleaved ? 2 * i + 1 : i + a.half);
    C cos = std::numeric_limits<C>::quiet_NaN(), sin = cos;
    if (position >= 0 && position < a.positions) {
      cos = a.cos[position * a.half + i];
      sin = a.sin[position * a.half + i];
    }
    if (a.inverse) sin = -sin;
    const C x = widen(*first), y = widen(*second);
    *first = narrow<T>(x * cos - y * sin);
    *second = narrow<T>(y * cos + x * sin);
  }
};

}  // namespace megatron::kernels::phases
