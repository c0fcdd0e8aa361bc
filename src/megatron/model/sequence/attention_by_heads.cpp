#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include "megatron/model/sequence/exchanges.h"

// Every rank gets some of the heads of the whole sequence by an all-to-all, and gives their outputs back by another
// (Jacobs et al. 2023).
namespace megatron::model::sequence {
namespace {

/// [s, b, heads, …], this rank's tokens -> [S, b, heads / ranks, …] by position, this rank's heads.
at::Tensor to_heads(const comm::Group& ranks, const at::Tensor& x) {
  const std::int64_t n = ranks.size();
  const auto sent = x.unflatten(2, {n, x.size(2) / n}).movedim(2, 0).contiguous();
  return by_position(ranks.all_to_all(sent).flatten(0, 1), ranks.size());
}

/// And back.
at::Tensor to_tokens(const comm::Group& ranks, const at::Tensor& x) {
  const std::int64_t n = ranks.size();
  const auto come = ranks.all_to_all(by_rank(x, ranks.size()));
  return come.unflatten(0, {n, x.size(0) / n}).movedim(0, 2).flatten(2, 3);
}

/// Queries by groups: [s, b, g, n/g, d].
at::Tensor grouped(const at::Tensor& q) { return q.dim() == 5 ? q : q.unsqueeze(3); }

/// Views of queries, keys and values, one after the other of each group.
Triple parts_of(const at::Tensor& x_sbgrd) {
  const std::int64_t queries = x_sbgrd.size(3) - 2;
  return {queries == 1 ? x_sbgrd.select(3, 0) : x_sbgrd.narrow(3, 0, queries), x_sbgrd.select(3, queries),
          x_sbgrd.select(3, queries + 1)};
}

at::Tensor all_of(const Triple& in) { return at::cat({grouped(in.q), in.k.unsqueeze(3), in.v.unsqueeze(3)}, 3); }

/// Those of this rank's heads.
AttentionOptions options_of_heads(const comm::Group& ranks, const Triple& mine, const AttentionOptions& options) {
  AttentionOptions own = options;
  const std::int64_t heads = mine.k.size(2) * grouped(mine.q).size(3);
  own.head_offset += ranks.rank() * heads;
  if (own.sinks.defined()) own.sinks = own.sinks.narrow(0, ranks.rank() * heads, heads);
  return own;
}

}  // namespace

AttentionOutput attention_by_heads(const comm::Group& ranks, const Triple& in, const AttentionOptions& options) {
  const Triple mine = parts_of(to_heads(ranks, all_of(in)));
  const auto made = kernels::attention(mine.q, mine.k, mine.v, options_of_heads(ranks, mine, options));
  return {to_tokens(ranks, made.out).contiguous(), made.logsumexp};
}

void attention_by_heads_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                                 const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                                 const at::Tensor& dsinks) {
  const at::Tensor all = to_heads(ranks, all_of(in)), gradients = at::empty_like(all);
  const at::Tensor outs = to_heads(ranks, at::stack({dout, forward.out}, 3));
  const Triple mine = parts_of(all), dmine = parts_of(gradients);
  const AttentionOptions own = options_of_heads(ranks, mine, options);
  const AttentionOutput made{outs.select(3, 1).contiguous(), forward.logsumexp};
  const at::Tensor dmade = outs.select(3, 0).contiguous();
  kernels::attention_backward(dmade, mine.q, mine.k, mine.v, made, own, dmine.q, dmine.k, dmine.v);
  if (dsinks.defined()) {
    const std::int64_t heads = own.sinks.size(0);
    dsinks.zero_().narrow(0, ranks.rank() * heads, heads).copy_(kernels::sink_gradient(dmade, made, own.sinks));
  }
  const Triple back = parts_of(to_tokens(ranks, gradients));
  into.q.copy_(back.q);
  into.k.copy_(back.k);
  into.v.copy_(back.v);
}

}  // namespace megatron::model::sequence
