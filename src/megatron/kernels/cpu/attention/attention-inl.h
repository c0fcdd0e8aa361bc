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
#include "megatron/kernels/cpu/elementwise/vector_body.h"
#include "megatron/kernels/cpu/random/random.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

inline void set(float* s, std::size_t begin, std::size_t end, float value) {
  const Floats d;
  for (; begin + hn::Lanes(d) <= end; begin += hn::Lanes(d)) hn::StoreU(hn::Set(d, value), d, s + begin);
  if (begin < end) hn::BlendedStore(hn::Set(d, value), hn::FirstN(d, end - begin), d, s + begin);
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

inline float sum_of_row(const float* s, std::size_t begin, std::size_t end) {
  F sum = hn::Zero(Floats());
  for (; begin < end; begin += kLanes) sum = hn::Add(sum, hn::LoadU(Floats(), s + begin));
  return sum_of_lanes(sum);
}

/// Of one row of scores s of keys [0, count), exp(scale s - max), after dropout unless that is null, goes to `row`,
/// zero outside `seen` up to the next multiple of 32. Updates `running`; returns the factor that what was summed before
/// has to be multiplied with. Of s, what is not seen becomes minus infinity here and there.
template <class Row>
float softmax_row(float* s, std::size_t count, KeyRange seen, float scale, const DropoutRow* dropout, Running& running,
                  const Row& row) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const Floats d;
  const std::size_t end = round_up(count, 32);
  if (seen.begin >= seen.end) {
    put_zeros(row, 0, end);
    return 1.0f;
  }
  const std::size_t from = seen.begin / kPairOfVectors * kPairOfVectors, to = round_up(seen.end, kPairOfVectors);
  set(s, from, seen.begin, kMinusInfinity);
  set(s, seen.end, to, kMinusInfinity);
  F largest = hn::LoadU(d, s + from), others = hn::LoadU(d, s + from + kLanes);
  for (std::size_t j = from + kPairOfVectors; j < to; j += kPairOfVectors) {
    largest = hn::Max(largest, hn::LoadU(d, s + j));
    others = hn::Max(others, hn::LoadU(d, s + j + kLanes));
  }
  float max = std::max(max_of_lanes(hn::Max(largest, others)) * scale, running.max);
  if (max == kMinusInfinity) {
    max = sum_of_row(s, from, to);  // a NaN is lost to the maximum, not to the sum
    if (max == kMinusInfinity) {    // nothing that counts
      put_zeros(row, 0, end);
      return 1.0f;
    }
  }
  using RowExp = typename Row::RowExp;
  const F shift = hn::Set(d, -max * RowExp::kFactor), factor = hn::Set(d, scale * RowExp::kFactor);
  F sum = hn::Zero(d), other_sum = hn::Zero(d);
  put_zeros(row, 0, from);
  for (std::size_t j = from; j < to; j += kPairOfVectors) {
    const F first = RowExp::power(hn::MulAdd(hn::LoadU(d, s + j), factor, shift));
    const F second = RowExp::power(hn::MulAdd(hn::LoadU(d, s + j + kLanes), factor, shift));
    sum = hn::Add(sum, first);
    other_sum = hn::Add(other_sum, second);
    if (dropout == nullptr) {
      row.put(j, first, second);
    } else {
      row.put(j, dropout->apply(first, j), dropout->apply(second, j + kLanes));
    }
  }
  put_zeros(row, to, end);
  const float rescale = running.max == max ? 1.0f : running.max == kMinusInfinity ? 0.0f : std::exp(running.max - max);
  running = {max, running.sum * rescale + sum_of_lanes(hn::Add(sum, other_sum))};
  return rescale;
}

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
/// dropout included, of query q0 + i in row_of(i); what `sum` [rows, stride] holds, unless it is the `first` block, is
/// scaled to the new maxima.
template <class RowOf>
void softmax_rows(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t rows, std::size_t k0,
                  std::size_t count, bool first, float* scores, Running* running, float* sum, std::size_t stride,
                  const RowOf& row_of) {
  DropoutRow dropout{p, {}};
  const bool scaled = p.bias != nullptr || p.soft_cap > 0, drops = p.sample_ids != nullptr;
  for (std::size_t i = 0; i < rows; ++i) {
    const KeyRange seen = within(visible(p, head.b, q0 + i), k0, count);
    float* s = scores + i * kScoreStride;
    if (p.bias != nullptr) add_bias(p, head, q0 + i, k0, seen, s);
    if (p.soft_cap > 0) cap_scores(p, seen.begin, seen.end, s);
    if (drops) dropout.draw(head, q0 + i, k0, seen);
    const float rescale =
        softmax_row(s, count, seen, scaled ? 1.0f : p.scale, drops ? &dropout : nullptr, running[i], row_of(i));
    if (!first && rescale != 1.0f) scale_row(sum + i * stride, stride, rescale);
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

/// What the gradient of a row of scores is made of: the query's log-sum-exp and delta (softmax_deltas()), the mask of
/// the row or null, and where the dropped probabilities and the gradients d loss / d (q k^T) go.
template <class Row>
struct GradientRow {
  float logsumexp, delta;
  const DropoutRow* dropout;
  Row probabilities, gradients;
};

/// One row, keys [0, count): s holds scores, ds d loss / d (dropped probabilities). `finish(g, j)` has the last word on
/// the gradients of keys [j, …).
template <class Row, class Finish>
HWY_INLINE void row_gradient(float* s, float* ds, std::size_t count, KeyRange seen, float scale,
                             const GradientRow<Row>& of, const Finish& finish) {
  const Floats d;
  const std::size_t end = round_up(count, 32);
  if (seen.begin >= seen.end) {
    for (const Row& row : {of.probabilities, of.gradients}) put_zeros(row, 0, end);
    return;
  }
  const std::size_t from = seen.begin / kPairOfVectors * kPairOfVectors, to = round_up(seen.end, kPairOfVectors);
  for (const Row& row : {of.probabilities, of.gradients}) {
    put_zeros(row, 0, from);
    put_zeros(row, to, end);
  }
  for (const KeyRange& unseen : {KeyRange{from, seen.begin}, KeyRange{seen.end, to}}) {
    set(s, unseen.begin, unseen.end, -std::numeric_limits<float>::infinity());
    set(ds, unseen.begin, unseen.end, 0.0f);  // nothing was computed there, it may be NaN
  }
  using RowExp = typename Row::RowExp;
  const F factor = hn::Set(d, scale * RowExp::kFactor), shift = hn::Set(d, -of.logsumexp * RowExp::kFactor);
  const F minus = hn::Set(d, of.delta);
  for (std::size_t j = from; j < to; j += kPairOfVectors) {
    F p[2], g[2], kept[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t at = j + i * kLanes;
      p[i] = kept[i] = RowExp::power(hn::MulAdd(hn::LoadU(d, s + at), factor, shift));
      g[i] = hn::LoadU(d, ds + at);
      if (of.dropout != nullptr) {
        kept[i] = of.dropout->apply(p[i], at);
        g[i] = of.dropout->apply(g[i], at);
      }
      g[i] = finish(hn::Mul(p[i], hn::Sub(g[i], minus)), at);
    }
    of.probabilities.put(j, kept[0], kept[1]);
    of.gradients.put(j, g[0], g[1]);
  }
}

/// One row of the gradient, of query `query` and keys [k0, k0 + count), whose scores have a bias or a cap or neither.
template <class Row>
void row_gradient(const AttentionProblem& p, const Head& head, std::size_t query, std::size_t k0, std::size_t count,
                  KeyRange seen, const GradientRow<Row>& of, float* s, float* ds) {
  const Floats d;
  const F factor = hn::Set(d, p.scale);
  if (p.soft_cap > 0) {
    float slopes[kScoreStride] = {};
    if (seen.begin < seen.end) cap_scores(p, seen.begin, seen.end, s, slopes);
    return row_gradient(s, ds, count, seen, 1.0f, of,
                        [&](F g, std::size_t j) HWY_ATTR { return hn::Mul(g, hn::LoadU(d, slopes + j)); });
  }
  if (p.bias == nullptr)
    return row_gradient(s, ds, count, seen, p.scale, of,
                        [=](F g, std::size_t) VECTOR_BODY { return hn::Mul(g, factor); });
  add_bias(p, head, query, k0, seen, s);
  float* const dbias = p.dbias + (head.b * p.heads() + p.number_of(head)) * p.bias_stride + bias_at(p, query, k0);
  row_gradient(s, ds, count, seen, 1.0f, of, [&](F g, std::size_t j) HWY_ATTR {
    const std::size_t lanes = seen.end > j ? std::min(seen.end - j, kLanes) : 0;
    if (lanes > 0) store(hn::Add(load(dbias + j, lanes), g), dbias + j, lanes);
    return hn::Mul(g, factor);
  });
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
