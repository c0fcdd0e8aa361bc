#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "megatron/kernels/cpu/attention/attention.h"

// The backward pass of attention as pieces of work. They follow from the problem's shape and from what its queries see,
// of all samples together, and not from the threads: on any number of them its sums are the same.
namespace megatron::kernels::cpu {

/// Some of the heads that share a group's keys and values, and some of its keys. One thread computes what those heads
/// and keys give each other: gradients of the keys and values, which are the sum over all subsets of the heads, and
/// gradients of the queries, which are the sum over all lanes.
struct BackwardPiece {
  std::size_t number;
  Head group;
  std::size_t first_member, members;  ///< of the group's heads
  std::size_t lane;
};

/// The keys lie in parts of `part`. Lanes take them in turns, there and back again: the first keys of a causal mask are
/// seen by the most queries. Pieces are counted by group, subset, lane.
struct BackwardPieces {
  std::size_t subsets, lanes, part;

  std::size_t count(const AttentionProblem& p) const { return p.batch * p.groups * subsets * lanes; }
  /// The most heads of a piece.
  std::size_t members(const AttentionProblem& p) const { return (p.sharing + subsets - 1) / subsets; }
  std::size_t parts(const AttentionProblem& p) const { return (p.keys + part - 1) / part; }
  std::size_t lane_of(std::size_t part_number) const {
    const std::size_t i = part_number % (2 * lanes);
    return std::min(i, 2 * lanes - 1 - i);
  }
  BackwardPiece piece(const AttentionProblem& p, std::size_t number) const {
    const std::size_t lane = number % lanes, subset = number / lanes % subsets, group = number / (lanes * subsets);
    const std::size_t first = subset * p.sharing / subsets;
    return {number, p.head(group * p.sharing), first, (subset + 1) * p.sharing / subsets - first, lane};
  }
  /// The piece of lane 0 that has `head` among its own.
  BackwardPiece piece_of(const AttentionProblem& p, const Head& head) const {
    std::size_t subset = 0;
    while ((subset + 1) * p.sharing / subsets <= head.member) ++subset;
    return piece(p, ((head.b * p.groups + head.group) * subsets + subset) * lanes);
  }
};

/// The most keys that a query sees; p.keys, without looking, where no `first_key` narrows them.
inline std::size_t most_keys_seen(const AttentionProblem& p) {
  if (p.first_key == nullptr) return p.keys;
  std::size_t most = 0;
  for (std::size_t b = 0; b < p.batch; ++b)
    for (std::size_t query = 0; query < p.queries; ++query) {
      const KeyRange seen = visible(p, b, query);
      most = std::max(most, seen.end - seen.begin);
    }
  return most;
}

/// At least 8 pieces where the shape allows it: more of few heads than of many, whose own gradients take memory.
/// `part`: keys of one, unless there are to be more of them. Where queries see few of the keys (a window, short
/// documents), a lane has neighbours, in one part where that is not much longer than what a query sees: so fewer
/// queries are seen by two parts, which both read them and leave gradients of theirs.
inline BackwardPieces backward_pieces(const AttentionProblem& p, std::size_t part, std::size_t least_part) {
  constexpr std::size_t kEnough = 16, kSeenInPart = 4;
  const auto more = [](std::size_t pieces, std::size_t most) {
    return std::clamp(kEnough / pieces, std::size_t{1}, std::max(most, std::size_t{1}));
  };
  BackwardPieces pieces{1, 1, part};
  pieces.subsets = more(p.batch * p.groups, p.sharing);
  if (p.bias == nullptr)  // a head's gradient of its biases is one sum
    pieces.lanes = more(p.batch * p.groups * pieces.subsets, (p.keys + least_part - 1) / least_part);
  const auto at_most = [&](std::size_t most, std::size_t parts) {
    const std::size_t each = (p.keys + parts - 1) / parts;
    pieces.part = std::min(most, (each + least_part - 1) / least_part * least_part);
  };
  const std::size_t seen = most_keys_seen(p);
  if (2 * seen <= p.keys && seen <= part)  // else the part would not fit into a cache
    at_most(std::max(part, (kSeenInPart * seen + least_part - 1) / least_part * least_part), pieces.lanes);
  else if (pieces.lanes > 1)
    at_most(part, 2 * pieces.lanes);
  return pieces;
}

/// Where pieces leave the gradients of the queries: float32 [members][queries][stride], in blocks of `block` queries.
struct QueryGradients {
  /// What became of a block of queries: nothing; a sum, here; it has been written to where dq belongs, by the one piece
  /// and part that has all keys it sees.
  enum State : std::uint8_t { kNothing, kSummed, kWritten };
  float* sums;
  std::uint8_t* touched;               ///< [members][blocks], a State each
  std::size_t stride, block, queries;  ///< queries: rounded up to blocks

  std::size_t blocks() const { return queries / block; }
  std::size_t floats(std::size_t members) const { return members * queries * stride; }
  float* rows(std::size_t member, std::size_t number) const {
    return sums + (member * queries + number * block) * stride;
  }
  std::uint8_t& touched_at(std::size_t member, std::size_t number) const { return touched[member * blocks() + number]; }
};

/// What is asked for, whatever the piece.
struct AttentionGradient {
  const AttentionProblem& p;
  BackwardPieces pieces;
  Heads dout;
  const float *logsumexp_bns, *delta_bns;  ///< delta: softmax_deltas()
  MutableHeads dq, dk, dv;
};

// The work, in this order; kernels on tiles (attention_tiles.h) have the second step, its pieces and its gradients of
// the queries, of their own.

/// The sums over d of dout * out, the softmax's own gradient, of queries [q0, q1) of a head, to [batch, heads,
/// queries].
void softmax_deltas(const AttentionProblem& problem, const Head& head, std::size_t q0, std::size_t q1,
                    const Heads& dout, const Heads& out, float* delta_bns);

BackwardPieces attention_backward_pieces(const AttentionProblem& problem);
/// Their shape, without memory.
QueryGradients query_gradients(const AttentionProblem& problem);
/// Scratch of one thread, in floats.
std::size_t backward_scratch_floats(const AttentionProblem& problem, const BackwardPieces& pieces);
/// Floats of the gradients of keys and values by one subset of the heads of a group.
std::size_t shared_gradient_floats(const AttentionProblem& problem);
/// Sums of one piece: to `dq`, nothing of which is touched at first; to dk and dv where `shared` is null, else the
/// subset's part of them there.
void attention_backward(const AttentionGradient& asked, const BackwardPiece& piece, const QueryGradients& dq,
                        float* shared, float* scratch);

/// dq of a block of queries of a head, the `member`-th of a piece, unless it is written: the sum of what its `lanes`
/// left.
void sum_query_gradients(const AttentionGradient& asked, const Head& head, std::size_t member, std::size_t block,
                         std::span<const QueryGradients> lanes);
/// dk and dv of a group: the sum of its subsets' parts, one after another at `shared`, which are overwritten.
void sum_shared_gradients(const AttentionGradient& asked, const Head& group, float* shared);

}  // namespace megatron::kernels::cpu
