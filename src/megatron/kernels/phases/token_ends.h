#pragma once
#include <limits>

#include "megatron/kernels/phases/token.h"

// How a token of each of some sequences enters a model, and which follows.
namespace megatron::kernels::phases {

/// The row of a token, plus that of its position, times `scale`: each step rounded. A thread a chunk.
template <class T>
struct TokenEmbedding : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128, kPhases = 1;
  struct Args {
    const std::int64_t *tokens = nullptr, *lengths = nullptr, *padding = nullptr;  ///< [batch]
    const T *words = nullptr, *places = nullptr;  ///< [v, h], [positions, h]; null: no learned positions
    T* y = nullptr;                               ///< [batch, h]
    std::int64_t batch = 0, v = 0, positions = 0, offset = 0, h = 0;
    C scale = 1;
  };
  using Shared = Nothing;
  using Local = Nothing;

  static std::int64_t tasks(const Args& a) { return a.batch * chunks_of<T>(a.h); }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    let_next_kernel_begin();
    wait_for_kernels_before();
    const std::int64_t task = task_of<TokenEmbedding>(at), b = task / chunks_of<T>(a.h), c = task % chunks_of<T>(a.h);
    if (b >= a.batch) return;
    const std::int64_t first = c * kChunk<T>, token = a.tokens[b];
    const int count = chunk_size<T>(a.h, c);
    C x[kChunk<T>] = {};
    if (token >= 0 && token < a.v) load(a.words + token * a.h + first, count, x);
    if (a.places != nullptr) {
      // A text that has ended may be past the last position, as long as others share its batch: nobody reads it.
      const std::int64_t place = a.lengths[b] - a.padding[b] + a.offset;
      C row[kChunk<T>];
      load(a.places + (place < a.positions ? place : a.positions - 1) * a.h + first, count, row);
      for (int i = 0; i < kChunk<T>; ++i) x[i] = widen(narrow<T>(x[i] + row[i]));
    }
    if (a.scale != C(1))
      for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] * a.scale;
    store(a.y + b * a.h + first, count, x);
  }
};

/// The largest logit of each sequence, of equals the first, is what it is fed next; and its cache has one row more. A
/// block a sequence.
template <class T>
struct TokenChoice : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 1024, kPhases = 3, kFolded = 32, kBatch = 4;
  struct Args {
    const T* logits = nullptr;  ///< [batch, v]
    std::int64_t v = 0;
    std::int64_t *tokens = nullptr, *lengths = nullptr, *chosen = nullptr;  ///< [batch]; chosen: -1 where not finite
  };
  struct Best {
    C value;
    std::int64_t token;
    bool finite;

    /// Both in one; the order in which any are taken makes no difference.
    MEGATRON_BOTH void take(const Best& other) {
      finite = finite && other.finite;
      if (other.value > value || (other.value == value && other.token < token)) {
        value = other.value;
        token = other.token;
      }
    }
  };
  struct Shared {
    Best of[kThreads], lane[kFolded];
  };
  using Local = Nothing;

  static MEGATRON_BOTH Best none(const Args& a) { return {-std::numeric_limits<C>::infinity(), a.v, true}; }

  static MEGATRON_BOTH Best among(const Args& a, const At& at) {
    Best best = none(a);
    const T* const row = a.logits + at.block * a.v;
    const std::int64_t chunks = chunks_of<T>(a.v);
    for (std::int64_t first = at.thread; first < chunks; first += kThreads * kBatch) {
      Chunk<T> now[kBatch];
      MEGATRON_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const std::int64_t c = first + i * kThreads;
        if (c < chunks) now[i] = load_chunk(row + c * kChunk<T>, chunk_size<T>(a.v, c));
      }
      MEGATRON_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const std::int64_t c = first + i * kThreads;
        MEGATRON_UNROLL
        for (int e = 0; e < kChunk<T>; ++e) {
          const std::int64_t token = c * kChunk<T> + e;
          if (token >= a.v) continue;
          const C value = number_of(now[i], e);
          if (!(std::abs(value) <= std::numeric_limits<C>::max())) best.finite = false;
          if (value > best.value) {  // a thread comes to ascending tokens
            best.value = value;
            best.token = token;
          }
        }
      }
    }
    return best;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      wait_for_kernels_before();
      shared.of[at.thread] = among(a, at);
    } else if constexpr (kPhase == 1) {
      if (at.thread >= kFolded) return;
      Best best = none(a);
      for (int i = at.thread; i < kThreads; i += kFolded) best.take(shared.of[i]);
      shared.lane[at.thread] = best;
    } else {
      if (at.thread != 0) return;
      Best best = none(a);
      for (const Best& other : shared.lane) best.take(other);
      a.tokens[at.block] = best.finite ? best.token : 0;
      a.chosen[at.block] = best.finite ? best.token : -1;
      a.lengths[at.block] += 1;
    }
  }
};

}  // namespace megatron::kernels::phases
