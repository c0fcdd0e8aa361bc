// What the forward and the backward pass of attention share.
#if defined(MEGATRON_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ATTENTION_INL_H_
#undef MEGATRON_KERNELS_CPU_ATTENTION_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/attention/attention_cap-inl.h"
#include "megatron/kernels/cpu/attention/attention_seen-inl.h"
#include "megatron/kernels/cpu/elementwise/rows-inl.h"
#include "megatron/kernels/cpu/random/random.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

inline void set(float* s, std::size_t begin, std::size_t end, float value) {
  const Floats d;
  for (; begin + hn::Lanes(d) <= end; begin += hn::Lanes(d)) hn::StoreU(hn::Set(d, value), d, s + begin);
  if (begin < end) hn::BlendedStore(hn::Set(d, value), hn::FirstN(d, end - begin), d, s + begin);
}

/// Turns one row of scores of keys [0, count) into exp(scale s - max), zero outside `seen`, and updates `running`.
/// Returns the factor that what was summed before has to be multiplied with.
inline float softmax_row(float* s, std::size_t count, KeyRange seen, float scale, Running& running) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const Floats d;
  const std::size_t lanes = hn::Lanes(d), end = round_up(count, 16);
  if (seen.begin >= seen.end) {
    set(s, 0, end, 0.0f);
    return 1.0f;
  }
  const std::size_t from = seen.begin / lanes * lanes, to = round_up(seen.end, lanes);
  set(s, from, seen.begin, kMinusInfinity);
  set(s, seen.end, to, kMinusInfinity);
  F largest = hn::Set(d, kMinusInfinity);
  for (std::size_t j = from; j < to; j += lanes) largest = hn::Max(largest, hn::LoadU(d, s + j));
  const float max = std::max(max_of_lanes(largest) * scale, running.max);  // in this order a NaN stays
  if (max == kMinusInfinity) {                                             // nothing that counts
    set(s, 0, end, 0.0f);
    return 1.0f;
  }
  const F shift = hn::Set(d, -max), factor = hn::Set(d, scale);
  F sum = hn::Zero(d);
  set(s, 0, from, 0.0f);
  for (std::size_t j = from; j < to; j += lanes) {
    const F e = exp(hn::MulAdd(hn::LoadU(d, s + j), factor, shift));
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, s + j);
  }
  set(s, to, end, 0.0f);
  const float rescale = running.max == max ? 1.0f : running.max == kMinusInfinity ? 0.0f : std::exp(running.max - max);
  running = {max, running.sum * rescale + sum_of_lanes(sum)};
  return rescale;
}

inline void scale_row(float* row, std::size_t count, float by) {
  const Floats d;
  for (std::size_t j = 0; j < count; j += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, row + j), hn::Set(d, by)), d, row + j);
}

/// to += by * from; `count` is a multiple of 16.
inline void add_scaled(float* to, const float* from, std::size_t count, float by) {
  const Floats d;
  for (std::size_t j = 0; j < count; j += hn::Lanes(d))
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from + j), hn::Set(d, by), hn::LoadU(d, to + j)), d, to + j);
}

/// The dropout mask of one row of probabilities: those of keys [k0, …) that query `query` sees.
struct DropoutRow {
  const AttentionProblem& p;
  std::uint32_t words[kKeyBlock];

  void draw(const Head& head, std::size_t query, std::size_t k0, KeyRange seen) {
    if (seen.begin >= seen.end) return;
    const std::uint64_t row = (p.head_offset + p.number_of(head)) * p.sequence_queries + p.first_query + query;
    random_words(p.dropout_key, static_cast<std::uint64_t>(p.sample_ids[head.b]),
                 row * p.sequence_keys + p.first_masked_key + k0 + seen.begin, seen.end - seen.begin,
                 words + seen.begin);
  }
  /// x scaled where the element is kept, else 0.
  HWY_INLINE F apply(F x, std::size_t i) const {
    const Floats d;
    const hn::RebindToUnsigned<Floats> du;
    const auto dropped = hn::Lt(hn::LoadU(du, words + i), hn::Set(du, p.dropout_threshold));
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), hn::Mul(x, hn::Set(d, p.keep_scale)));
  }
};

/// Where the biases of query `query` begin for keys from k0 on.
inline std::size_t bias_at(const AttentionProblem& p, std::size_t query, std::size_t k0) {
  return p.queries - 1 - query + k0;
}

/// Scores s of a query and keys [k0, …), of which `seen` matter, become the scaled ones with their biases.
inline void add_bias(const AttentionProblem& p, const Head& head, std::size_t query, std::size_t k0, KeyRange seen,
                     float* s) {
  const Floats d;
  const float* bias = p.bias + p.number_of(head) * p.bias_stride + bias_at(p, query, k0);
  const F factor = hn::Set(d, p.scale);
  for (std::size_t j = seen.begin / hn::Lanes(d) * hn::Lanes(d); j < seen.end; j += hn::Lanes(d))
    hn::StoreU(hn::MulAdd(hn::LoadU(d, s + j), factor, hn::LoadU(d, bias + j)), d, s + j);
}

/// Scores [rows, kScoreStride] of queries [q0, q0 + rows) and keys [k0, k0 + count) become the weights of the values,
/// dropout included; what `sum` [rows, stride] holds, unless it is the `first` block, is scaled to the new maxima.
inline void softmax_rows(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t rows, std::size_t k0,
                         std::size_t count, bool first, float* scores, Running* running, float* sum,
                         std::size_t stride) {
  DropoutRow dropout{p, {}};
  for (std::size_t i = 0; i < rows; ++i) {
    const KeyRange seen = within(visible(p, head.b, q0 + i), k0, count);
    float* s = scores + i * kScoreStride;
    if (p.bias != nullptr) add_bias(p, head, q0 + i, k0, seen, s);
    if (p.soft_cap > 0) cap_scores(p, seen.begin, seen.end, s);
    const bool scaled = p.bias != nullptr || p.soft_cap > 0;
    const float rescale = softmax_row(s, count, seen, scaled ? 1.0f : p.scale, running[i]);
    if (!first && rescale != 1.0f) scale_row(sum + i * stride, stride, rescale);
    if (p.sample_ids == nullptr || seen.begin >= seen.end) continue;
    dropout.draw(head, q0 + i, k0, seen);
    for (std::size_t j = seen.begin / hn::Lanes(Floats()) * hn::Lanes(Floats()); j < seen.end; j += hn::Lanes(Floats()))
      hn::StoreU(dropout.apply(hn::LoadU(Floats(), s + j), j), Floats(), s + j);
  }
}

/// Writes out and logsumexp of queries [q0, q0 + rows).
inline void finish_rows(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t rows,
                        const Running* running, float* sum, std::size_t stride, const MutableHeads& out,
                        float* logsumexp_bns) {
  for (std::size_t i = 0; i < rows; ++i) {
    const EndOfRow end = end_of_row(p, head, running[i]);
    scale_row(sum + i * stride, stride, end.factor);
    logsumexp_bns[p.row_of(head) + q0 + i] = end.logsumexp;
  }
  write_rows(p.type, sum, stride, rows, p.size, out.at(q0, head), out.position);
}

/// One row, keys [0, count): s holds scores and becomes the dropped probabilities; ds holds d loss / d (dropped
/// probabilities) and becomes d loss / d (q k^T).
inline void row_gradient(float* s, float* ds, std::size_t count, KeyRange seen, float logsumexp, float delta,
                         float scale, const DropoutRow* dropout) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d), end = round_up(count, 16);
  if (seen.begin >= seen.end) {
    for (float* row : {s, ds}) set(row, 0, end, 0.0f);
    return;
  }
  const std::size_t from = seen.begin / lanes * lanes, to = round_up(seen.end, lanes);
  for (float* row : {s, ds}) {
    set(row, 0, from, 0.0f);
    set(row, to, end, 0.0f);
  }
  set(s, from, seen.begin, -std::numeric_limits<float>::infinity());
  set(s, seen.end, to, -std::numeric_limits<float>::infinity());
  const F factor = hn::Set(d, scale), shift = hn::Set(d, -logsumexp), minus = hn::Set(d, delta);
  for (std::size_t j = from; j < to; j += lanes) {
    F p = exp(hn::MulAdd(hn::LoadU(d, s + j), factor, shift)), g = hn::LoadU(d, ds + j);
    F kept = p;
    if (dropout != nullptr) {
      kept = dropout->apply(p, j);
      g = dropout->apply(g, j);
    }
    hn::StoreU(kept, d, s + j);
    hn::StoreU(hn::Mul(hn::Mul(p, hn::Sub(g, minus)), factor), d, ds + j);
  }
}

/// row_gradient() where p.soft_cap bounds the scores; `s` holds them before that.
inline void capped_row_gradient(const AttentionProblem& p, float* s, float* ds, std::size_t count, KeyRange seen,
                                float logsumexp, float delta, const DropoutRow* dropout) {
  float slopes[kScoreStride];
  if (seen.begin < seen.end) cap_scores(p, seen.begin, seen.end, s, slopes);
  row_gradient(s, ds, count, seen, logsumexp, delta, 1.0f, dropout);
  if (seen.begin < seen.end) multiply_by(slopes, seen.begin, seen.end, ds);
}

/// The same of query `query` and keys [k0, k0 + count), its biases with theirs.
inline void row_gradient(const AttentionProblem& p, const Head& head, std::size_t query, std::size_t k0,
                         std::size_t count, KeyRange seen, float logsumexp, float delta, const DropoutRow* dropout,
                         float* s, float* ds) {
  if (p.soft_cap > 0) return capped_row_gradient(p, s, ds, count, seen, logsumexp, delta, dropout);
  if (p.bias == nullptr) return row_gradient(s, ds, count, seen, logsumexp, delta, p.scale, dropout);
  const Floats d;
  add_bias(p, head, query, k0, seen, s);
  row_gradient(s, ds, count, seen, logsumexp, delta, 1.0f, dropout);
  float* dbias = p.dbias + (head.b * p.heads() + p.number_of(head)) * p.bias_stride + bias_at(p, query, k0);
  const F factor = hn::Set(d, p.scale);
  for (std::size_t j = seen.begin / hn::Lanes(d) * hn::Lanes(d); j < seen.end; j += hn::Lanes(d)) {
    const F g = hn::LoadU(d, ds + j);
    hn::StoreU(hn::Add(hn::LoadU(d, dbias + j), g), d, dbias + j);
    hn::StoreU(hn::Mul(g, factor), d, ds + j);
  }
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
