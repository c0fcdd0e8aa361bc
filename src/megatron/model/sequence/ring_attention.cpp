#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "megatron/model/sequence/exchanges.h"

// Keys and values go around: in each step a rank attends to those that it holds while it sends them on and the next
// come. What pieces of keys give is merged by their log-sum-exps (Liu et al. 2023).
namespace megatron::model::sequence {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr int kKeysTag = 0, kGradientsTag = 1;

/// A message on its way to the next rank of the ring, and one from the last.
class Turn {
 public:
  Turn() = default;
  /// Every second rank sends first: a transport whose sends wait for their receives gets around too.
  Turn(const comm::Group& ranks, at::Tensor out, at::Tensor in, int tag) : out_(std::move(out)), in_(std::move(in)) {
    const int n = ranks.size(), next = (ranks.rank() + 1) % n, last = (ranks.rank() + n - 1) % n;
    if (ranks.rank() % 2 == 0) sent_ = ranks.send_async(out_, next, tag);
    received_ = ranks.recv_async(in_, last, tag);
    if (ranks.rank() % 2 != 0) sent_ = ranks.send_async(out_, next, tag);
  }
  /// What has come; what was sent may be written again.
  at::Tensor wait() {
    received_->wait();
    sent_->wait();
    return in_;
  }

 private:
  at::Tensor out_, in_;
  comm::WorkHandle sent_, received_;
};

/// Calls visit(queries, keys) for each of this rank's pieces and of each of `owner`'s what it sees.
template <class Visit>
void for_each_seen(const comm::Group& ranks, int owner, const Triple& in, const AttentionOptions& options,
                   const Visit& visit) {
  const Lengths whole = whole_lengths(ranks, in);
  for (const SequenceChunk& queries : pieces_of(ranks.size(), ranks.rank(), in.q.size(0)))
    for (SequenceChunk keys : pieces_of(ranks.size(), owner, in.k.size(0))) {
      keys.positions.end = std::min(keys.positions.end, end_of_seen(options, whole.keys, queries.positions));
      if (keys.positions.size() > 0) visit(queries, keys);
    }
}

/// Whose keys a rank holds after `step` steps.
int owner_after(const comm::Group& ranks, int step) { return (ranks.rank() + ranks.size() - step) % ranks.size(); }

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// [b, n, s] as factors of [s, b, n, d].
at::Tensor of_rows(const at::Tensor& x_bns) { return x_bns.permute({2, 0, 1}).unsqueeze(3); }

/// Adds attention over some keys to attention over others, in place: each is a mean of values, weighted by what its
/// exponentials sum up to.
void merge_(const at::Tensor& out, const at::Tensor& logsumexp, const AttentionOutput& other) {
  const at::Tensor both = at::logaddexp(logsumexp, other.logsumexp);
  const at::Tensor shift = both.masked_fill(both == kNothing, 0);  // queries that have seen no key
  out.mul_(of_rows((logsumexp - shift).exp_())).add_(other.out * of_rows((other.logsumexp - shift).exp_()));
  logsumexp.copy_(both);
}

}  // namespace

AttentionOutput ring_attention(const comm::Group& ranks, const Triple& in, const AttentionOptions& options) {
  const std::int64_t s = in.q.size(0), b = in.q.size(1), d = in.q.size(-1), heads = in.q.numel() / (s * b * d);
  const auto precise = in.q.options().dtype(wide(in.q));
  const at::Tensor out = at::zeros({s, b, heads, d}, precise), logsumexp = at::full({b, heads, s}, kNothing, precise);
  const Lengths whole = whole_lengths(ranks, in);
  at::Tensor held = keys_and_values(in.k, in.v);
  for (int step = 0; step < ranks.size(); ++step) {
    const bool more = step + 1 < ranks.size();
    Turn turn = more ? Turn(ranks, held, at::empty_like(held), kKeysTag) : Turn();
    for_each_seen(
        ranks, owner_after(ranks, step), in, options, [&](const SequenceChunk& queries, const SequenceChunk& keys) {
          const at::Tensor seen = keys.rows(held);
          AttentionOptions part = options_of_part(options, whole, queries.positions, keys.positions);
          if (keys.positions.begin != queries.positions.begin) part.sinks = at::Tensor();  // which are there once
          const auto made = kernels::attention(queries.rows(in.q), seen.select(3, 0), seen.select(3, 1), part);
          merge_(queries.rows(out), logsumexp.narrow(2, queries.row, queries.positions.size()), made);
        });
    if (more) held = turn.wait();
  }
  return {out.to(in.q.scalar_type()), logsumexp};
}

void ring_attention_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                             const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                             const at::Tensor& dbias) {
  const Lengths whole = whole_lengths(ranks, in);
  if (dbias.defined()) dbias.zero_();
  const at::Tensor dq = at::zeros(in.q.sizes(), in.q.options().dtype(wide(in.q)));
  at::Tensor held = keys_and_values(in.k, in.v);
  Turn gradients;  // of the keys that are held: what ranks before this one have added up
  at::Tensor sum;
  for (int step = 0; step < ranks.size(); ++step) {
    const bool more = step + 1 < ranks.size();
    Turn turn = more ? Turn(ranks, held, at::empty_like(held), kKeysTag) : Turn();
    at::Tensor own = at::zeros_like(held, held.options().dtype(wide(held)));
    for_each_seen(
        ranks, owner_after(ranks, step), in, options, [&](const SequenceChunk& queries, const SequenceChunk& keys) {
          const at::Tensor seen = keys.rows(held), dseen = at::empty_like(seen);
          const at::Tensor dqueries = at::empty(queries.rows(in.q).sizes(), in.q.options());
          const AttentionOutput of_piece{
              queries.rows(forward.out),
              forward.logsumexp.narrow(2, queries.row, queries.positions.size()).contiguous()};
          const AttentionOptions part = options_of_part(options, whole, queries.positions, keys.positions);
          const at::Tensor dpart = dbias.defined() ? at::empty_like(part.bias) : at::Tensor();
          kernels::attention_backward(queries.rows(dout), queries.rows(in.q), seen.select(3, 0), seen.select(3, 1),
                                      of_piece, part, dqueries, dseen.select(3, 0), dseen.select(3, 1), dpart);
          if (dbias.defined()) bias_of_part(dbias, whole, queries.positions, keys.positions).add_(dpart);
          queries.rows(dq).add_(dqueries);
          keys.rows(own).add_(dseen);
        });
    sum = step == 0 ? own : own.add_(gradients.wait());
    gradients = Turn(ranks, sum, at::empty_like(sum), kGradientsTag);  // at last home to their owner
    if (more) held = turn.wait();
  }
  sum = gradients.wait();
  into.q.copy_(dq);
  into.k.copy_(sum.select(3, 0));
  into.v.copy_(sum.select(3, 1));
}

}  // namespace megatron::model::sequence
