#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <cmath>

#include "megatron/kernels/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void pack(const AttentionProblem& p, std::size_t b, std::size_t n, float* packed) {
  const std::size_t stride = round_up(p.size, 16);
  pack_transposed(p.k.at(0, b, n), p.k.position, p.keys, p.size, packed);
  pack_rows(p.v.at(0, b, n), p.v.position, p.keys, p.size, packed + round_up(p.keys, kPanel) * p.size, stride);
}

/// The running softmax of one query (Milakov & Gimelshein 2018): largest score so far and the sum of exp relative to
/// it.
struct Running {
  float max = kMinusInfinity, sum = 0;
};

/// Turns one row of scores of keys [0, count) into exp(scale s - max), zero outside `seen`, and updates `running`.
/// Returns the factor that what was summed before has to be multiplied with.
float softmax_row(float* s, std::size_t count, KeyRange seen, float scale, Running& running) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d), end = round_up(count, 16);
  std::fill(s, s + seen.begin, kMinusInfinity);
  std::fill(s + seen.end, s + end, kMinusInfinity);
  const std::size_t from = seen.begin / lanes * lanes, to = round_up(seen.end, lanes);
  F largest = hn::Set(d, kMinusInfinity);
  for (std::size_t j = from; j < to; j += lanes) largest = hn::Max(largest, hn::LoadU(d, s + j));
  const float max = std::max(max_of_lanes(largest) * scale, running.max);  // in this order a NaN stays
  if (max == kMinusInfinity) {                                             // nothing seen yet
    std::fill(s, s + end, 0.0f);
    return 1.0f;
  }
  const F shift = hn::Set(d, -max), factor = hn::Set(d, scale);
  F sum = hn::Zero(d);
  std::fill(s, s + from, 0.0f);
  for (std::size_t j = from; j < to; j += lanes) {
    const F e = exp(hn::MulAdd(hn::LoadU(d, s + j), factor, shift));
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, s + j);
  }
  std::fill(s + std::max(to, from), s + end, 0.0f);
  const float rescale = running.max == kMinusInfinity ? 0.0f : std::exp(running.max - max);
  running = {max, running.sum * rescale + sum_of_lanes(sum)};
  return rescale;
}

void scale_row(float* row, std::size_t count, float by) {
  const Floats d;
  for (std::size_t j = 0; j < count; j += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, row + j), hn::Set(d, by)), d, row + j);
}

void forward(const AttentionProblem& p, std::size_t b, std::size_t n, std::size_t block, const float* packed,
             const MutableHeads& out, float* logsumexp_bns, float* scratch) {
  const std::size_t q0 = block * kQueryBlock, q1 = std::min(q0 + kQueryBlock, p.queries), rows = q1 - q0;
  const std::size_t stride = round_up(p.size, 16);
  const float* values = packed + round_up(p.keys, kPanel) * p.size;
  float *scores = scratch, *sum = scratch + kQueryBlock * kScoreStride;
  Running running[kQueryBlock];
  DropoutRow dropout{p, {}};
  const KeyRange all = visible_of_block(p, b, q0, q1);
  const Left queries{p.q.at(q0, b, n), static_cast<std::size_t>(p.q.position), 1};
  if (all.begin >= all.end) std::fill(sum, sum + rows * stride, 0.0f);
  for (std::size_t k0 = all.begin; k0 < all.end; k0 += kKeyBlock) {
    const std::size_t count = std::min(kKeyBlock, all.end - k0);
    score_block(queries, packed, p.size, k0, count, rows, scores);
    for (std::size_t i = 0; i < rows; ++i) {
      const KeyRange row = visible(p, b, q0 + i);
      const KeyRange seen{std::clamp(row.begin, k0, k0 + count) - k0, std::clamp(row.end, k0, k0 + count) - k0};
      float* s = scores + i * kScoreStride;
      const float rescale = softmax_row(s, count, seen, p.scale, running[i]);
      if (k0 != all.begin && rescale != 1.0f) scale_row(sum + i * stride, stride, rescale);
      if (p.sample_ids != nullptr && seen.begin < seen.end) {
        dropout.draw(b, n, q0 + i, k0, count);
        for (std::size_t j = 0; j < count; j += hn::Lanes(Floats())) {
          hn::StoreU(dropout.apply(hn::LoadU(Floats(), s + j), j), Floats(), s + j);
        }
      }
    }
    product({scores, kScoreStride, 1}, values + k0 * stride, stride, sum, stride, rows, count, stride, k0 != all.begin);
  }
  for (std::size_t i = 0; i < rows; ++i) {
    scale_row(sum + i * stride, stride, running[i].sum > 0 ? 1.0f / running[i].sum : running[i].sum);
    std::memcpy(out.at(q0 + i, b, n), sum + i * stride, p.size * sizeof(float));
    logsumexp_bns[(b * p.heads + n) * p.queries + q0 + i] = running[i].max + std::log(running[i].sum);
  }
}

float dot(const float* a, const float* b, std::size_t size) {
  F sum = hn::Zero(Floats());
  for_vectors(size, [&](std::size_t i, std::size_t lanes)
                        HWY_ATTR { sum = hn::MulAdd(load(a + i, lanes), load(b + i, lanes), sum); });
  return sum_of_lanes(sum);
}

void few_queries(const AttentionProblem& p, std::size_t b, std::size_t n, const MutableHeads& out, float* logsumexp_bns,
                 float* scores) {
  for (std::size_t i = 0; i < p.queries; ++i) {
    const KeyRange seen = visible(p, b, i);
    const float* query = p.q.at(i, b, n);
    for (std::size_t j = seen.begin; j < seen.end; ++j) scores[j] = dot(query, p.k.at(j, b, n), p.size);
    Running running;
    softmax_row(scores, p.keys, seen, p.scale, running);
    float* sum = out.at(i, b, n);
    std::fill(sum, sum + p.size, 0.0f);
    const float normalize = running.sum > 0 ? 1.0f / running.sum : running.sum;
    for (std::size_t j = seen.begin; j < seen.end; ++j) {
      const F weight = hn::Set(Floats(), scores[j] * normalize);
      const float* value = p.v.at(j, b, n);
      for_vectors(p.size, [&](std::size_t c, std::size_t lanes) HWY_ATTR {
        store(hn::MulAdd(weight, load(value + c, lanes), load(sum + c, lanes)), sum + c, lanes);
      });
    }
    logsumexp_bns[(b * p.heads + n) * p.queries + i] = running.max + std::log(running.sum);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
namespace {
std::size_t padded(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
}  // namespace

HWY_EXPORT(pack);
HWY_EXPORT(forward);
HWY_EXPORT(few_queries);

std::size_t packed_floats(const AttentionProblem& p) {
  return padded(p.keys, 64) * p.size + p.keys * padded(p.size, 16);
}

std::size_t forward_scratch_floats(const AttentionProblem& p) {
  const std::size_t block = kQueryBlock * (256 + 16 + padded(p.size, 16));
  return p.queries <= kFewQueries ? std::max(padded(p.keys, 16), block) : block;
}

void pack_keys_and_values(const AttentionProblem& problem, std::size_t b, std::size_t n, float* packed) {
  HWY_DYNAMIC_DISPATCH(pack)(problem, b, n, packed);
}

void attention_forward(const AttentionProblem& problem, std::size_t b, std::size_t n, std::size_t block,
                       const float* packed, const MutableHeads& out, float* logsumexp_bns, float* scratch) {
  HWY_DYNAMIC_DISPATCH(forward)(problem, b, n, block, packed, out, logsumexp_bns, scratch);
}

void attention_few_queries(const AttentionProblem& problem, std::size_t b, std::size_t n, const MutableHeads& out,
                           float* logsumexp_bns, float* scratch) {
  HWY_DYNAMIC_DISPATCH(few_queries)(problem, b, n, out, logsumexp_bns, scratch);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
