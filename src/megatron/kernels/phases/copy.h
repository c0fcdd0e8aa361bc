#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Copies heads between arrays of other strides. A thread a chunk.
template <class T>
struct CopyHeads : Straight {
  static constexpr int kThreads = 256, kPhases = 1, kDims = 4;
  struct Args {
    const T* from = nullptr;
    T* to = nullptr;  ///< both [s, b, g, r, d], the last contiguous
    std::int64_t heads = 0, d = 0, from_strides[kDims] = {}, to_strides[kDims] = {};
    Divisor b = {}, g = {}, r = {}, chunks = {};  ///< chunks of a head
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<CopyHeads>(at), head = a.chunks.of(task);
    if (head >= a.heads) return;
    const std::int64_t chunk = task - head * a.chunks.by, first = chunk * kChunk<T>;
    const std::int64_t above_r = a.r.of(head), above_g = a.g.of(above_r), s = a.b.of(above_g);
    const std::int64_t index[kDims] = {s, above_g - s * a.b.by, above_r - above_g * a.g.by, head - above_r * a.r.by};
    std::int64_t from = first, to = first;
    MEGATRON_UNROLL for (int i = 0; i < kDims; ++i) {
      from += index[i] * a.from_strides[i];
      to += index[i] * a.to_strides[i];
    }
    const int count = chunk_size<T>(a.d, chunk);
    store_chunk(a.to + to, count, load_chunk(a.from + from, count));
  }
};

}  // namespace megatron::kernels::phases
