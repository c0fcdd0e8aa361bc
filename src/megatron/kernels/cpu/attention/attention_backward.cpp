#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/attention/attention-inl.h"
#include "megatron/kernels/cpu/attention/backward_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kRowsAtOnce = kQueryBlock / 4;  // that are asked for with a block of keys

/// The scratch of one thread, cut up.
struct Workspace {
  std::size_t stride;                         // of a packed row of d elements
  float *keys_t, *values_t, *keys, *dk, *dv;  // of a part of the keys
  float *scores, *dscores, *queries, *dout;   // of a block of queries
  float* dq;                                  // of one that sees no key of another part
  float* end;

  Workspace(const AttentionProblem& p, std::size_t part, float* at) : stride(round_up(p.size, 16)) {
    const auto take = [&at](std::size_t count) {
      float* taken = at;
      at += round_up(count, 16);
      return taken;
    };
    for (float** panels : {&keys_t, &values_t}) *panels = take(round_up(part, kPanel) * p.size);
    for (float** rows : {&keys, &dk, &dv}) *rows = take(part * stride);
    for (float** block : {&scores, &dscores}) *block = take(kQueryBlock * kScoreStride);
    for (float** rows : {&queries, &dout, &dq}) *rows = take(kQueryBlock * stride);
    end = at;
  }
};

/// Keys [begin, end) and what `w` has of them.
struct Part {
  KeyRange keys;
  const Workspace& w;
};

/// Rows [q0, q0 + rows) against keys [k0, k0 + count) of the part: adds to dk and dv, and to dq unless this is its
/// `first` block.
void block_gradient(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t rows, const Part& part,
                    std::size_t k0, std::size_t count, const float* logsumexp, const float* delta, float* dq,
                    bool first) {
  const Workspace& w = part.w;
  const std::size_t at = k0 - part.keys.begin;
  const SeenBlock seen(p, head.b, q0, rows, k0, count);
  seen.score({w.queries, w.stride, 1}, w.keys_t + at * p.size, p.size, w.scores);
  seen.score({w.dout, w.stride, 1}, w.values_t + at * p.size, p.size, w.dscores);
  DropoutRow dropout{p, {}};
  for (std::size_t i = 0; i < rows; ++i) {
    if (p.sample_ids != nullptr) dropout.draw(head, q0 + i, k0, seen.of_row(i));
    float *const s = w.scores + i * kScoreStride, *const ds = w.dscores + i * kScoreStride;
    const GradientRow<FloatRow> of{
        logsumexp[q0 + i], delta[q0 + i], p.sample_ids != nullptr ? &dropout : nullptr, {s}, {ds}};
    row_gradient(p, head, q0 + i, k0, count, seen.of_row(i), of, s, ds);
  }
  seen.weigh_queries(w.scores, w.dout, w.stride, w.dv + at * w.stride);
  seen.weigh_queries(w.dscores, w.queries, w.stride, w.dk + at * w.stride);
  seen.weigh_keys(w.dscores, w.keys + at * w.stride, w.stride, dq, !first);
}

/// What `head` and the keys of a part give each other.
void part_gradient(const AttentionGradient& asked, const Head& head, const Part& part, const QueryGradients& dq,
                   std::size_t member) {
  const AttentionProblem& p = asked.p;
  const float *logsumexp = asked.logsumexp_bns + p.row_of(head), *delta = asked.delta_bns + p.row_of(head);
  for (std::size_t block = 0; block < dq.blocks(); ++block) {
    const std::size_t q0 = block * kQueryBlock, rows = std::min(kQueryBlock, p.queries - q0);
    const KeyRange all = visible_of_block(p, head.b, q0, q0 + rows);
    const std::size_t begin = std::max(all.begin, part.keys.begin), end = std::min(all.end, part.keys.end);
    if (begin >= end) continue;
    read_rows(p.type, p.q.at(q0, head), p.q.position, rows, p.size, part.w.queries, part.w.stride);
    read_rows(p.type, asked.dout.at(q0, head), asked.dout.position, rows, p.size, part.w.dout, part.w.stride);
    std::uint8_t& touched = dq.touched_at(member, block);
    const bool complete = part.keys.begin <= all.begin && all.end <= part.keys.end;
    float* const sums = complete ? part.w.dq : dq.rows(member, block);
    RowsAhead next{q0 + rows, std::min(q0 + rows + kQueryBlock, p.queries)};
    RowsAhead written{q0, complete ? q0 + rows : q0};
    for (std::size_t k0 = begin; k0 < end; k0 += kKeyBlock) {
      block_gradient(p, head, q0, rows, part, k0, std::min(kKeyBlock, end - k0), logsumexp, delta, sums,
                     touched == QueryGradients::kNothing);
      touched = QueryGradients::kSummed;
      next.ask(kRowsAtOnce, p, head, p.q, asked.dout);
      written.ask(kRowsAtOnce, p, head, asked.dq);
    }
    if (!complete) continue;
    write_rows(p.type, sums, dq.stride, rows, p.size, asked.dq.at(q0, head), asked.dq.position);
    touched = QueryGradients::kWritten;
  }
}

void backward(const AttentionGradient& asked, const BackwardPiece& piece, const QueryGradients& dq, float* shared,
              float* scratch) {
  const AttentionProblem& p = asked.p;
  const BackwardPieces& pieces = asked.pieces;
  Workspace w(p, pieces.part, scratch);
  for (std::size_t number = 0; number < pieces.parts(p); ++number) {
    if (pieces.lane_of(number) != piece.lane) continue;
    const std::size_t k0 = number * pieces.part, keys = std::min(pieces.part, p.keys - k0);
    if (shared != nullptr) {
      w.dk = shared + k0 * w.stride;
      w.dv = w.dk + p.keys * w.stride;
    }
    read_transposed(p.type, p.k.at(k0, piece.group), p.k.position, keys, p.size, w.keys_t);
    read_transposed(p.type, p.v.at(k0, piece.group), p.v.position, keys, p.size, w.values_t);
    read_rows(p.type, p.k.at(k0, piece.group), p.k.position, keys, p.size, w.keys, w.stride);
    for (float* sums : {w.dk, w.dv}) std::fill(sums, sums + keys * w.stride, 0.0f);
    for (std::size_t member = 0; member < piece.members; ++member) {
      const Head head{piece.group.b, piece.group.group, piece.first_member + member};
      part_gradient(asked, head, {{k0, k0 + keys}, w}, dq, member);
    }
    if (shared != nullptr) continue;
    write_rows(p.type, w.dk, w.stride, keys, p.size, asked.dk.at(k0, piece.group), asked.dk.position);
    write_rows(p.type, w.dv, w.stride, keys, p.size, asked.dv.at(k0, piece.group), asked.dv.position);
  }
}

template <class T>
void delta_of(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t q1, const Heads& dout,
              const Heads& out, float* delta) {
  for (std::size_t i = q0; i < q1; ++i) {
    const T *g = reinterpret_cast<const T*>(dout.at(i, head)), *y = reinterpret_cast<const T*>(out.at(i, head));
    F sum = hn::Zero(Floats());
    for_vectors(p.size, [&](std::size_t c, std::size_t lanes)
                            HWY_ATTR { sum = hn::MulAdd(load(g + c, lanes), load(y + c, lanes), sum); });
    delta[i] = sum_of_lanes(sum);
  }
}

void softmax_delta(const AttentionProblem& p, const Head& head, std::size_t q0, std::size_t q1, const Heads& dout,
                   const Heads& out, float* delta_bns) {
  float* const delta = delta_bns + p.row_of(head);
  switch (p.type) {
    case ElementType::Float32:
      return delta_of<float>(p, head, q0, q1, dout, out, delta);
    case ElementType::BFloat16:
      return delta_of<c10::BFloat16>(p, head, q0, q1, dout, out, delta);
    case ElementType::Float16:
      return delta_of<c10::Half>(p, head, q0, q1, dout, out, delta);
  }
}

void sum_queries(const AttentionGradient& asked, const Head& head, std::size_t member, std::size_t block,
                 const QueryGradients* lanes, std::size_t count) {
  const AttentionProblem& p = asked.p;
  const std::size_t q0 = block * lanes->block, rows = std::min(lanes->block, p.queries - q0), stride = lanes->stride;
  float* sum = nullptr;
  for (std::size_t lane = 0; lane < count; ++lane) {
    const std::uint8_t state = lanes[lane].touched_at(member, block);
    if (state == QueryGradients::kWritten) return;
    if (state == QueryGradients::kNothing) continue;
    float* const part = lanes[lane].rows(member, block);
    if (sum == nullptr) {
      sum = part;
    } else {
      add_scaled(sum, part, rows * stride, 1.0f);
    }
  }
  if (sum == nullptr) {  // queries that see nothing
    sum = lanes->rows(member, block);
    std::fill(sum, sum + rows * stride, 0.0f);
  }
  write_rows(p.type, sum, stride, rows, p.size, asked.dq.at(q0, head), asked.dq.position);
}

void sum_shared(const AttentionGradient& asked, const Head& group, float* shared) {
  const AttentionProblem& p = asked.p;
  const std::size_t stride = round_up(p.size, 16), floats = 2 * p.keys * stride;
  for (std::size_t subset = 1; subset < asked.pieces.subsets; ++subset)
    add_scaled(shared, shared + subset * floats, floats, 1.0f);
  write_rows(p.type, shared, stride, p.keys, p.size, asked.dk.at(0, group), asked.dk.position);
  write_rows(p.type, shared + p.keys * stride, stride, p.keys, p.size, asked.dv.at(0, group), asked.dv.position);
}

std::size_t scratch_floats(const AttentionProblem& p, std::size_t part) {
  return static_cast<std::size_t>(Workspace(p, part, nullptr).end - static_cast<float*>(nullptr));
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(backward);
HWY_EXPORT(scratch_floats);
HWY_EXPORT(softmax_delta);
HWY_EXPORT(sum_queries);
HWY_EXPORT(sum_shared);

BackwardPieces attention_backward_pieces(const AttentionProblem& p) {
  constexpr std::size_t kPart = 1024, kLeastPart = 256;  // what a core's second cache holds of five; a block of scores
  return backward_pieces(p, kPart, kLeastPart);
}
std::size_t backward_scratch_floats(const AttentionProblem& p, const BackwardPieces& pieces) {
  return HWY_DYNAMIC_DISPATCH(scratch_floats)(p, pieces.part);
}
QueryGradients query_gradients(const AttentionProblem& p) {
  const std::size_t stride = (p.size + 15) / 16 * 16, blocks = (p.queries + kQueryBlock - 1) / kQueryBlock;
  return {nullptr, nullptr, stride, kQueryBlock, blocks * kQueryBlock};
}
std::size_t shared_gradient_floats(const AttentionProblem& p) { return 2 * p.keys * ((p.size + 15) / 16 * 16); }

void attention_backward(const AttentionGradient& asked, const BackwardPiece& piece, const QueryGradients& dq,
                        float* shared, float* scratch) {
  HWY_DYNAMIC_DISPATCH(backward)(asked, piece, dq, shared, scratch);
}
void softmax_deltas(const AttentionProblem& problem, const Head& head, std::size_t q0, std::size_t q1,
                    const Heads& dout, const Heads& out, float* delta_bns) {
  HWY_DYNAMIC_DISPATCH(softmax_delta)(problem, head, q0, q1, dout, out, delta_bns);
}
void sum_query_gradients(const AttentionGradient& asked, const Head& head, std::size_t member, std::size_t block,
                         std::span<const QueryGradients> lanes) {
  HWY_DYNAMIC_DISPATCH(sum_queries)(asked, head, member, block, lanes.data(), lanes.size());
}
void sum_shared_gradients(const AttentionGradient& asked, const Head& group, float* shared) {
  HWY_DYNAMIC_DISPATCH(sum_shared)(asked, group, shared);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
