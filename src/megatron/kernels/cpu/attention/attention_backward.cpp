#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/attention/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// The scratch of one thread, cut up.
struct Workspace {
  std::size_t stride;                                   // of a packed row of d elements
  float *keys_t, *values_t, *keys, *dk, *dv;            // of the whole sequence
  float *scores, *dscores, *queries, *dout, *out, *dq;  // of a block of queries

  Workspace(const AttentionProblem& p, float* at) : stride(round_up(p.size, 16)) {
    const auto take = [&at](std::size_t count) {
      float* part = at;
      at += round_up(count, 16);
      return part;
    };
    keys_t = take(round_up(p.keys, kPanel) * p.size);
    values_t = take(round_up(p.keys, kPanel) * p.size);
    for (float** part : {&keys, &dk, &dv}) *part = take(p.keys * stride);
    for (float** part : {&scores, &dscores}) *part = take(kQueryBlock * kScoreStride);
    for (float** part : {&queries, &dout, &out, &dq}) *part = take(kQueryBlock * stride);
  }
};

/// Rows [q0, q1) against keys [k0, k0 + count): adds to dk, dv and dq.
void block_gradient(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t rows, std::size_t k0,
                    std::size_t count, const float* logsumexp, const float* delta, bool first, const Workspace& w) {
  const SeenBlock seen(p, head.b, q0, rows, k0, count);
  seen.score({w.queries, w.stride, 1}, w.keys_t + k0 * p.size, p.size, w.scores);
  seen.score({w.dout, w.stride, 1}, w.values_t + k0 * p.size, p.size, w.dscores);
  DropoutRow dropout{p, {}};
  for (std::size_t i = 0; i < rows; ++i) {
    if (p.sample_ids != nullptr) dropout.draw(head, q0 + i, k0, seen.of_row(i));
    row_gradient(p, head, q0 + i, k0, count, seen.of_row(i), logsumexp[q0 + i], delta[i],
                 p.sample_ids != nullptr ? &dropout : nullptr, w.scores + i * kScoreStride,
                 w.dscores + i * kScoreStride);
  }
  seen.weigh_queries(w.scores, w.dout, w.stride, w.dv + k0 * w.stride);
  seen.weigh_queries(w.dscores, w.queries, w.stride, w.dk + k0 * w.stride);
  seen.weigh_keys(w.dscores, w.keys + k0 * w.stride, w.stride, w.dq, !first);
}

/// Reads rows [q0, q0 + rows) of the queries' side and gives delta, the sum over d of dout * out: the softmax's own
/// gradient.
void read_queries(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t rows, const Heads& dout,
                  const Heads& out, const Workspace& w, float* delta) {
  const Floats d;
  read_rows(p.type, p.q.at(q0, head), p.q.position, rows, p.size, w.queries, w.stride);
  read_rows(p.type, dout.at(q0, head), dout.position, rows, p.size, w.dout, w.stride);
  read_rows(p.type, out.at(q0, head), out.position, rows, p.size, w.out, w.stride);
  for (std::size_t i = 0; i < rows; ++i) {
    F sum = hn::Zero(d);
    const float *g = w.dout + i * w.stride, *y = w.out + i * w.stride;
    for (std::size_t c = 0; c < w.stride; c += hn::Lanes(d))
      sum = hn::MulAdd(hn::LoadU(d, g + c), hn::LoadU(d, y + c), sum);
    delta[i] = sum_of_lanes(sum);
  }
}

void backward(const AttentionProblem& p, const Head& head, const Heads& dout, const Heads& out,
              const float* logsumexp_bns, const MutableHeads& dq, const MutableHeads& dk, const MutableHeads& dv,
              float* shared, float* scratch) {
  Workspace w(p, scratch);
  if (shared != nullptr) {
    w.dk = shared;
    w.dv = shared + p.keys * w.stride;
  }
  read_transposed(p.type, p.k.at(0, head), p.k.position, p.keys, p.size, w.keys_t);
  read_transposed(p.type, p.v.at(0, head), p.v.position, p.keys, p.size, w.values_t);
  read_rows(p.type, p.k.at(0, head), p.k.position, p.keys, p.size, w.keys, w.stride);
  std::fill(w.dk, w.dk + p.keys * w.stride, 0.0f);
  std::fill(w.dv, w.dv + p.keys * w.stride, 0.0f);
  const float* logsumexp = logsumexp_bns + p.row_of(head);
  float delta[kQueryBlock];
  for (std::size_t q0 = 0; q0 < p.queries; q0 += kQueryBlock) {
    const std::size_t q1 = std::min(q0 + kQueryBlock, p.queries), rows = q1 - q0;
    read_queries(p, head, q0, rows, dout, out, w, delta);
    const KeyRange all = visible_of_block(p, head.b, q0, q1);
    if (all.begin >= all.end) std::fill(w.dq, w.dq + rows * w.stride, 0.0f);
    for (std::size_t k0 = all.begin; k0 < all.end; k0 += kKeyBlock) {
      block_gradient(p, head, q0, rows, k0, std::min(kKeyBlock, all.end - k0), logsumexp, delta, k0 == all.begin, w);
    }
    write_rows(p.type, w.dq, w.stride, rows, p.size, dq.at(q0, head), dq.position);
  }
  if (shared != nullptr) return;
  write_rows(p.type, w.dk, w.stride, p.keys, p.size, dk.at(0, head), dk.position);
  write_rows(p.type, w.dv, w.stride, p.keys, p.size, dv.at(0, head), dv.position);
}

void sum_shared(const AttentionProblem& p, const Head& group, float* shared, const MutableHeads& dk,
                const MutableHeads& dv) {
  const std::size_t stride = round_up(p.size, 16), floats = 2 * p.keys * stride;
  for (std::size_t member = 1; member < p.sharing; ++member) add_scaled(shared, shared + member * floats, floats, 1.0f);
  write_rows(p.type, shared, stride, p.keys, p.size, dk.at(0, group), dk.position);
  write_rows(p.type, shared + p.keys * stride, stride, p.keys, p.size, dv.at(0, group), dv.position);
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(backward);
HWY_EXPORT(sum_shared);

std::size_t backward_scratch_floats(const AttentionProblem& p) {
  const std::size_t keys = (p.keys + 63) / 64 * 64, stride = (p.size + 15) / 16 * 16;
  return 2 * keys * p.size + 3 * p.keys * stride + kQueryBlock * (2 * (256 + 16) + 4 * stride) + 11 * 16;
}
std::size_t shared_gradient_floats(const AttentionProblem& p) { return 2 * p.keys * ((p.size + 15) / 16 * 16); }

void attention_backward(const AttentionProblem& problem, const Head& head, const Heads& dout, const Heads& out,
                        const float* logsumexp_bns, const MutableHeads& dq, const MutableHeads& dk,
                        const MutableHeads& dv, float* shared, float* scratch) {
  HWY_DYNAMIC_DISPATCH(backward)(problem, head, dout, out, logsumexp_bns, dq, dk, dv, shared, scratch);
}
void sum_shared_gradients(const AttentionProblem& problem, const Head& group, float* shared, const MutableHeads& dk,
                          const MutableHeads& dv) {
  HWY_DYNAMIC_DISPATCH(sum_shared)(problem, group, shared, dk, dv);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
