#pragma once
#include "megatron/kernels/phases/activation.h"
#include "megatron/kernels/phases/token_attention_parts.h"

// A linear layer of one token of each of few sequences: what takes time is to read the matrix.
namespace megatron::kernels::phases {

template <class T>
struct TokenProductArgs {
  using C = Compute<T>;
  const T *x = nullptr, *weight = nullptr;    ///< [rows, k], [n, k]; gated [2 n, k]: gates, then values
  const T *bias = nullptr, *add = nullptr;    ///< as a row of the product; [rows, n]. Null: none
  T* y = nullptr;                             ///< [rows, n]
  const T *gain = nullptr, *shift = nullptr;  ///< [k]: of the norm of x; null gain: x as it is, null shift: RMSNorm
  std::int64_t rows = 0, n = 0, k = 0;
  TokenAttentionArgs<T> attention = {};  ///< where x is null: x is what its parts give, d a multiple of a chunk
  std::int64_t first_row = 0;            ///< which sequence of these row 0 is
  C eps = 0, factor = 1;                 ///< of the norm; x, normalized, is multiplied by `factor`
  C soft_cap = 0;                        ///< products p become c tanh(p / c); 0: p
  bool activated = false, gated = false;
  Form form = Form::GeluTanh;
  C clamp = 0, offset = 0;  ///< as of Activate

  MEGATRON_BOTH std::int64_t chunks() const { return chunks_of<T>(k); }
};

/// Up to kRows rows of x. 32 lanes have kOwn rows of the matrix (of gated layers a gate and its value), whose first
/// chunks they ask for before x is there. x lies behind Shared.
template <class T, int kRows>
struct TokenProduct : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128, kPhases = 7, kResident = kRows == 1 && sizeof(T) < 8 ? 4 : 3;
  static constexpr int kLanes = 32, kTeams = kThreads / kLanes, kOwn = 2, kAhead = kRows == 1 ? 8 : 4, kFolded = 16;
  using Args = TokenProductArgs<T>;
  struct alignas(16) Shared {
    C part[kRows][kThreads], lane[kRows][kFolded];
    C dots[kTeams][kOwn][kRows][kLanes + 1];
  };
  struct Local {
    Chunk<T> ahead[kOwn][kAhead];
    C mean[kRows];
  };

  static MEGATRON_BOTH std::int64_t extra_bytes(const Args& a) {
    return kRows * a.chunks() * static_cast<std::int64_t>(sizeof(Chunk<T>));
  }
  static MEGATRON_BOTH std::int64_t blocks(const Args& a) {
    const std::int64_t each = a.gated ? kTeams : kTeams * kOwn;
    return (a.n + each - 1) / each;
  }

  static MEGATRON_BOTH Chunk<T>* x_of(const Args& a, Shared& shared, int row) {
    return reinterpret_cast<Chunk<T>*>(&shared + 1) + row * a.chunks();
  }
  /// Which column of y row `own` of a team's is for; past n: none.
  static MEGATRON_BOTH std::int64_t column(const Args& a, const At& at, int team, int own) {
    const std::int64_t place = at.block * kTeams + team;
    return a.gated ? place : place * kOwn + own;
  }
  /// Asks for the chunks `c` of a team's rows, as number `i` of those that are on their way.
  static MEGATRON_BOTH void ask(const Args& a, const At& at, std::int64_t c, int i, Local& local) {
    MEGATRON_UNROLL
    for (int own = 0; own < kOwn; ++own) {
      const std::int64_t j = column(a, at, at.thread / kLanes, own), row = a.gated && own == 1 ? a.n + j : j;
      if (j < a.n && c < a.chunks())
        local.ahead[own][i] = load_chunk(a.weight + row * a.k + c * kChunk<T>, chunk_size<T>(a.k, c));
    }
  }

  static MEGATRON_BOTH Chunk<T> given(const Args& a, int r, std::int64_t c) {
    if (a.x != nullptr) return load_chunk(a.x + r * a.k + c * kChunk<T>, chunk_size<T>(a.k, c));
    const std::int64_t feature = c * kChunk<T>;
    C values[kChunk<T>];
    a.attention.merge(a.first_row + r, feature / a.attention.d, feature % a.attention.d, values);
    return packed<T>(values);
  }

  /// Takes x to shared memory; the sum of this thread's elements, or of their squares.
  static MEGATRON_BOTH void take(const Args& a, const At& at, Shared& shared) {
    const bool squares = a.shift == nullptr;
    for (int r = 0; r < kRows; ++r) {
      C part = 0;
      for (std::int64_t c = at.thread; c < a.chunks(); c += kThreads) {
        Chunk<T> x = {};
        if (r < a.rows) x = given(a, r, c);
        x_of(a, shared, r)[c] = x;
        if (a.gain == nullptr) continue;
        MEGATRON_UNROLL
        for (int e = 0; e < kChunk<T>; ++e) {
          const C value = number_of(x, e);
          part += squares ? value * value : value;
        }
      }
      shared.part[r][at.thread] = part;
    }
  }
  static MEGATRON_BOTH void fold(const At& at, Shared& shared) {
    for (int task = at.thread; task < kRows * kFolded; task += kThreads) {
      const int r = task / kFolded, lane = task % kFolded;
      C sum = shared.part[r][lane];
      for (int i = lane + kFolded; i < kThreads; i += kFolded) sum += shared.part[r][i];
      shared.lane[r][lane] = sum;
    }
  }
  static MEGATRON_BOTH C mean_of(const Args& a, const Shared& shared, int r) {
    C sum = shared.lane[r][0];
    for (int i = 1; i < kFolded; ++i) sum += shared.lane[r][i];
    return sum / static_cast<C>(a.k);
  }
  static MEGATRON_BOTH void centre(const Args& a, const At& at, Shared& shared, Local& local) {
    for (int r = 0; r < kRows; ++r) {
      const C mean = mean_of(a, shared, r);
      C part = 0;
      for (std::int64_t c = at.thread; c < a.chunks(); c += kThreads) {
        const int count = chunk_size<T>(a.k, c);
        MEGATRON_UNROLL
        for (int e = 0; e < kChunk<T>; ++e) {
          const C value = number_of(x_of(a, shared, r)[c], e) - mean;
          if (e < count) part += value * value;
        }
      }
      local.mean[r] = mean;
      shared.part[r][at.thread] = part;
    }
  }
  static MEGATRON_BOTH void normalize(const Args& a, const At& at, Shared& shared, const Local& local) {
    for (int r = 0; r < kRows; ++r) {
      const C rstd = C(1) / std::sqrt(mean_of(a, shared, r) + a.eps);
      const C mean = a.shift != nullptr ? local.mean[r] : C(0);
      for (std::int64_t c = at.thread; c < a.chunks(); c += kThreads) {
        const int count = chunk_size<T>(a.k, c);
        const Chunk<T> gain = load_chunk(a.gain + c * kChunk<T>, count);
        Chunk<T> shift = {};
        if (a.shift != nullptr) shift = load_chunk(a.shift + c * kChunk<T>, count);
        Chunk<T>& x = x_of(a, shared, r)[c];
        C values[kChunk<T>];
        MEGATRON_UNROLL
        for (int e = 0; e < kChunk<T>; ++e) {
          values[e] = (number_of(x, e) - mean) * rstd * number_of(gain, e);
          if (a.shift != nullptr) values[e] = values[e] + number_of(shift, e);
        }
        x = packed<T>(values);
      }
    }
  }
  static MEGATRON_BOTH void scale(const Args& a, const At& at, Shared& shared) {
    for (int r = 0; r < kRows; ++r)
      for (std::int64_t c = at.thread; c < a.chunks(); c += kThreads) {
        Chunk<T>& x = x_of(a, shared, r)[c];
        C values[kChunk<T>];
        unpack(x, values);
        MEGATRON_UNROLL
        for (C& value : values) value = value * a.factor;
        x = packed<T>(values);
      }
  }

  /// This lane's part of the products of its team's rows with each of x.
  static MEGATRON_BOTH void multiply(const Args& a, const At& at, Shared& shared, Local& local) {
    const int lane = at.thread % kLanes, team = at.thread / kLanes;
    C sums[kOwn][kRows] = {};
    for (std::int64_t first = lane; first < a.chunks(); first += kLanes * kAhead) {
      MEGATRON_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t c = first + i * kLanes;
        Chunk<T> now[kOwn];
        MEGATRON_UNROLL
        for (int own = 0; own < kOwn; ++own) now[own] = local.ahead[own][i];
        ask(a, at, c + kLanes * kAhead, i, local);
        if (c >= a.chunks()) continue;
        MEGATRON_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const Chunk<T> x = x_of(a, shared, r)[c];
          MEGATRON_UNROLL
          for (int e = 0; e < kChunk<T>; ++e) {
            const C factor = number_of(x, e);
            MEGATRON_UNROLL
            for (int own = 0; own < kOwn; ++own) sums[own][r] = std::fma(number_of(now[own], e), factor, sums[own][r]);
          }
        }
      }
    }
    for (int own = 0; own < kOwn; ++own)
      for (int r = 0; r < kRows; ++r) shared.dots[team][own][r][lane] = sums[own][r];
  }

  static MEGATRON_BOTH C activated(const Args& a, C u) {
    return with_form(a.form, [&]<Form kForm>() { return value_of<kForm, T>(u); });
  }
  static MEGATRON_BOTH C with_bias(const Args& a, std::int64_t j, C sum) {
    return a.bias != nullptr ? widen(narrow<T>(sum)) + widen(a.bias[j]) : sum;
  }
  static MEGATRON_BOTH void end(const Args& a, const At& at, const Shared& shared) {
    const int owns = a.gated ? 1 : kOwn;
    for (int task = at.thread; task < kTeams * owns * kRows; task += kThreads) {
      const int r = task % kRows, own = task / kRows % owns, team = task / (kRows * owns);
      const std::int64_t j = column(a, at, team, own);
      if (r >= a.rows || j >= a.n) continue;
      C value = with_bias(a, j, sum_of_lanes(shared.dots[team][own][r]));
      if (a.activated) {
        value = widen(narrow<T>(value));
        if (a.gated) {
          const C gate = a.clamp > C(0) && value > a.clamp ? a.clamp : value;
          C linear = widen(narrow<T>(with_bias(a, a.n + j, sum_of_lanes(shared.dots[team][1][r]))));
          if (a.clamp > C(0)) linear = linear > a.clamp ? a.clamp : linear < -a.clamp ? -a.clamp : linear;
          value = activated(a, gate) * (linear + a.offset);
        } else {
          value = activated(a, value);
        }
      }
      if (a.soft_cap > C(0)) {  // each step rounded, as the operators for many rows do it
        value = widen(narrow<T>(widen(narrow<T>(value)) / a.soft_cap));
        value = widen(narrow<T>(std::tanh(value))) * a.soft_cap;
      }
      if (a.add != nullptr) value = value + widen(a.add[r * a.n + j]);
      a.y[r * a.n + j] = narrow<T>(value);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    const bool norm = a.gain != nullptr, centred = norm && a.shift != nullptr;
    if constexpr (kPhase == 0) {
      let_next_kernel_begin();
      MEGATRON_UNROLL
      for (int i = 0; i < kAhead; ++i) ask(a, at, at.thread % kLanes + i * kLanes, i, local);
      wait_for_kernels_before();
      take(a, at, shared);
    } else if constexpr (kPhase == 1) {
      if (norm) fold(at, shared);
    } else if constexpr (kPhase == 2) {
      if (centred) centre(a, at, shared, local);
    } else if constexpr (kPhase == 3) {
      if (centred) fold(at, shared);
    } else if constexpr (kPhase == 4) {
      if (norm) normalize(a, at, shared, local);
      if (a.factor != C(1)) scale(a, at, shared);
    } else if constexpr (kPhase == 5) {
      multiply(a, at, shared, local);
    } else {
      end(a, at, shared);
    }
  }
};

}  // namespace megatron::kernels::phases
