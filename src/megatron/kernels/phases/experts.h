#pragma once
#include "megatron/kernels/phases/activation.h"

namespace megatron::kernels::phases {

/// The way back through weight * activation(u), a block a row: the gradients of u and of the row's weight, and
/// weight * activation(u) again.
template <class T>
struct WeightedActivation : Straight {
  using C = Compute<T>;
  using Unit = Activate<T>;
  static constexpr int kThreads = 128, kPhases = 3, kN = kChunk<T>;
  struct Args {
    typename Unit::Args unit;    ///< without a bias; `out` and `again` are both written
    const C* weights = nullptr;  ///< [rows]; null: 1 each
    C* gradients = nullptr;      ///< of the weights; null: none
  };
  struct Shared {
    BlockSum<C, kThreads> sum;
  };
  using Local = Nothing;

  /// Of one chunk. -> its part of the weight's gradient.
  template <Form kForm>
  static MEGATRON_BOTH C chunk(const typename Unit::Args& a, std::int64_t row, std::int64_t first, int count,
                               C weight) {
    C u[kN], dy[kN], y[kN], value[kN] = {}, part = 0;
    const std::int64_t place = row * a.f + first, wide = a.gated ? 2 * a.f : a.f;
    Unit::input(a, row, first, count, u);
    if (a.gated) Unit::input(a, row, a.f + first, count, value);
    load(a.dy + place, count, dy);
    MEGATRON_UNROLL for (int i = 0; i < kN; ++i) {
      const C gate = a.gated ? Unit::gate_of(a, u[i]) : u[i], activated = value_of<kForm, T>(gate);
      const C factor = a.gated ? Unit::value_in(a, value[i]) : C(1), scaled = dy[i] * weight;
      y[i] = activated * factor;
      if (i < count) part += dy[i] * y[i];
      y[i] = y[i] * weight;
      u[i] = a.gated && !Unit::free_gate(a, u[i]) ? C(0) : scaled * factor * slope_of<kForm, T>(gate);
      value[i] = Unit::free_value(a, value[i]) ? scaled * activated : C(0);
    }
    store(a.again + place, count, y);
    store(a.out + row * wide + first, count, u);
    if (a.gated) store(a.out + row * wide + a.f + first, count, value);
    return part;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      const C weight = a.weights != nullptr ? a.weights[at.block] : C(1);
      shared.sum.part[at.thread] = with_form(a.unit.form, [&]<Form kForm>() {
        C part = 0;
        for (std::int64_t c = at.thread; c < chunks_of<T>(a.unit.f); c += kThreads)
          part += chunk<kForm>(a.unit, at.block, c * kN, chunk_size<T>(a.unit.f, c), weight);
        return part;
      });
    } else if constexpr (kPhase == 1) {
      shared.sum.fold(at.thread);
    } else {
      if (at.thread == 0 && a.gradients != nullptr) a.gradients[at.block] = shared.sum.total();
    }
  }
};

/// out[t] = the sum of the rows index[t], each times its weight. A thread a chunk.
template <class T>
struct CombineRows : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    const T* rows = nullptr;              ///< [.., h]
    const std::int64_t* index = nullptr;  ///< [tokens, k]; below 0: no row
    const C* weights = nullptr;           ///< [tokens, k]; null: 1 each
    T* out = nullptr;                     ///< [tokens, h]
    std::int64_t tokens = 0, k = 0, h = 0;
    Divisor chunks = {};  ///< of a row
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<CombineRows>(at), token = a.chunks.of(task);
    if (token >= a.tokens) return;
    const std::int64_t chunk = task - token * a.chunks.by, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    C sum[kChunk<T>] = {}, x[kChunk<T>];
    for (std::int64_t j = token * a.k; j < (token + 1) * a.k; ++j) {
      const std::int64_t row = a.index[j];
      if (row < 0) continue;
      const C weight = a.weights != nullptr ? a.weights[j] : C(1);
      load(a.rows + row * a.h + first, count, x);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) sum[i] += x[i] * weight;
    }
    store(a.out + token * a.h + first, count, sum);
  }
};

}  // namespace megatron::kernels::phases
