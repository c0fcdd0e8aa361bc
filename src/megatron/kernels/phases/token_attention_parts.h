#pragma once
#include <limits>

#include "megatron/kernels/phases/token.h"

// Attention of one new token of each sequence over a cache of keys and values. All that changes from token to token is
// read from memory: a launch can be repeated as it is.
namespace megatron::kernels::phases {

/// So many keys are a part, which a block reads; parts are put together afterwards.
constexpr std::int64_t kPartKeys = 128;
constexpr std::int64_t kMostHeadSize = 256;

template <class T>
struct TokenAttentionArgs {
  using C = Compute<T>;
  const T* qkv = nullptr;                ///< [batch, groups, ratio + 2, d]: a group's queries, key, value
  T *keys = nullptr, *values = nullptr;  ///< of a cache: by the strides below, d side by side
  std::int64_t stride_b = 0, stride_group = 0, stride_row = 0;
  const std::int64_t *lengths = nullptr, *padding = nullptr;  ///< [batch]: rows that are filled, and that nobody sees
  const C *cos = nullptr, *sin = nullptr;                     ///< [positions, half]; null: nothing is rotated
  std::int64_t positions = 0, half = 0;
  bool interleaved = false;
  std::int64_t batch = 0, groups = 0, ratio = 1, d = 0;
  std::int64_t parts = 1;   ///< that a full cache has
  std::int64_t window = 0;  ///< keys that are seen, the new one too; 0: all
  C scale = 1, soft_cap = 0;
  const C* sinks = nullptr;                          ///< [groups * ratio]
  C *out = nullptr, *max = nullptr, *sum = nullptr;  ///< [batch, heads, parts, d], twice [batch, heads, parts]
  T* y = nullptr;                                    ///< [batch, heads, d]

  MEGATRON_BOTH std::int64_t heads() const { return groups * ratio; }
  MEGATRON_BOTH std::int64_t first_key(std::int64_t b) const {
    const std::int64_t windowed = window > 0 ? lengths[b] - window + 1 : 0;
    return windowed > padding[b] ? windowed : padding[b];
  }
  MEGATRON_BOTH const T* head(std::int64_t b, std::int64_t group, std::int64_t member) const {
    return qkv + ((b * groups + group) * (ratio + 2) + member) * d;
  }
  MEGATRON_BOTH std::int64_t row(std::int64_t b, std::int64_t group, std::int64_t i) const {
    return b * stride_b + group * stride_group + i * stride_row;
  }
  /// Feature `c` of a head at its position, rounded as it is stored. Past the table: NaN.
  MEGATRON_BOTH T rotated(const T* x, std::int64_t c, std::int64_t position) const {
    if (cos == nullptr || c >= 2 * half) return x[c];
    const std::int64_t i = interleaved ? c / 2 : c % half;
    const bool second = interleaved ? c % 2 == 1 : c >= half;
    const C one = widen(x[interleaved ? 2 * i : i]), other = widen(x[interleaved ? 2 * i + 1 : i + half]);
    C turn_cos = std::numeric_limits<C>::quiet_NaN(), turn_sin = turn_cos;
    if (position >= 0 && position < positions) {
      turn_cos = cos[position * half + i];
      turn_sin = sin[position * half + i];
    }
    return narrow<T>(second ? other * turn_cos + one * turn_sin : one * turn_cos - other * turn_sin);
  }

  /// kCount features of a head from `feature` on, of all parts of its keys together, with its sink.
  template <int kCount>
  MEGATRON_BOTH void merge(std::int64_t b, std::int64_t head, std::int64_t feature, C (&to)[kCount]) const {
    const std::int64_t first = first_key(b) / kPartKeys, last = lengths[b] / kPartKeys;
    const std::int64_t from = (b * heads() + head) * parts;
    C most = sinks != nullptr ? sinks[head] : -std::numeric_limits<C>::infinity();
    for (std::int64_t part = first; part <= last; ++part) most = most < max[from + part] ? max[from + part] : most;
    C total = sinks != nullptr ? std::exp(sinks[head] - most) : C(0), values[kCount] = {};
    for (std::int64_t part = first; part <= last; ++part) {
      const C weight = std::exp(max[from + part] - most);
      const C* const own = out + (from + part) * d + feature;
      total += sum[from + part] * weight;
      MEGATRON_UNROLL
      for (int i = 0; i < kCount; ++i) values[i] += own[i] * weight;
    }
    MEGATRON_UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = values[i] / total;
  }
};

/// The parts of each head's keys put together, with its sink. A thread a feature.
template <class T>
struct TokenAttentionEnd : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128, kPhases = 1;
  using Args = TokenAttentionArgs<T>;
  using Shared = Nothing;
  using Local = Nothing;

  static std::int64_t tasks(const Args& a) { return a.batch * a.heads() * a.d; }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<TokenAttentionEnd>(at), head = task / a.d, b = head / a.heads();
    let_next_kernel_begin();
    wait_for_kernels_before();
    if (b >= a.batch) return;
    C value[1];
    a.merge(b, head % a.heads(), task % a.d, value);
    a.y[task] = narrow<T>(value[0]);
  }
};

}  // namespace megatron::kernels::phases
