#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/attention/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

void pack(const AttentionProblem& p, const Head& head, float* packed) {
  static_assert(kLeastBlock % kPanel == 0);
  const std::size_t stride = round_up(p.size, 16);
  float* const values = packed + round_up(p.keys, kPanel) * p.size;
  for (std::size_t k = 0, count = 0; k < p.keys; k += count) {
    count = p.k.together(k, p.keys - k);
    read_transposed(p.type, p.k.at(k, head), p.k.position, count, p.size, packed + k * p.size);
    read_rows(p.type, p.v.at(k, head), p.v.position, count, p.size, values + k * stride, stride);
  }
}

void forward(const AttentionProblem& p, const Head& head, std::size_t block, const float* packed,
             const MutableHeads& out, float* logsumexp_bns, float* scratch) {
  const std::size_t q0 = block * kQueryBlock, q1 = std::min(q0 + kQueryBlock, p.queries), rows = q1 - q0;
  const std::size_t stride = round_up(p.size, 16);
  const float* values = packed + round_up(p.keys, kPanel) * p.size;
  float *scores = scratch, *queries = scores + kQueryBlock * kScoreStride, *sum = queries + kQueryBlock * stride;
  Running running[kQueryBlock];
  const KeyRange all = visible_of_block(p, head.b, q0, q1);
  read_rows(p.type, p.q.at(q0, head), p.q.position, rows, p.size, queries, stride);
  if (all.begin >= all.end) std::fill(sum, sum + rows * stride, 0.0f);
  RowsAhead written{q0, q1};
  for (std::size_t k0 = all.begin; k0 < all.end; k0 += kKeyBlock) {
    written.ask(kQueryBlock / 4, p, head, out);
    const std::size_t count = std::min(kKeyBlock, all.end - k0);
    const SeenBlock seen(p, head.b, q0, rows, k0, count);
    seen.score({queries, stride, 1}, packed + k0 * p.size, p.size, scores);
    softmax_rows(p, head, q0, rows, k0, count, k0 == all.begin, scores, running, sum, stride,
                 [=](std::size_t i) { return FloatRow{scores + i * kScoreStride}; });
    seen.weigh_keys(scores, values + k0 * stride, stride, sum, k0 != all.begin);
  }
  finish_rows(p, head, q0, rows, running, sum, stride, out, logsumexp_bns);
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

std::size_t packed_floats(const AttentionProblem& p) {
  return padded(p.keys, 64) * p.size + p.keys * padded(p.size, 16);
}

std::size_t forward_scratch_floats(const AttentionProblem& p) {
  return kQueryBlock * (256 + 16 + 2 * padded(p.size, 16));
}

void pack_keys_and_values(const AttentionProblem& problem, const Head& head, float* packed) {
  HWY_DYNAMIC_DISPATCH(pack)(problem, head, packed);
}

void attention_forward(const AttentionProblem& problem, const Head& head, std::size_t block, const float* packed,
                       const MutableHeads& out, float* logsumexp_bns, float* scratch) {
  HWY_DYNAMIC_DISPATCH(forward)(problem, head, block, packed, out, logsumexp_bns, scratch);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
