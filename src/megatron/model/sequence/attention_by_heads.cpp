#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <utility>

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

/// Queries, keys and values as they travel: together, or in cross attention, whose queries are of other tokens, in two.
struct Travelling {
  at::Tensor first;   ///< [s, b, g, n/g + 2, d], or the queries alone
  at::Tensor second;  ///< keys and values [k, b, g, 2, d], or undefined

  explicit Travelling(const Triple& in)
      : first(in.q.size(0) == in.k.size(0) ? at::cat({grouped(in.q), in.k.unsqueeze(3), in.v.unsqueeze(3)}, 3)
                                           : grouped(in.q)),
        second(in.q.size(0) == in.k.size(0) ? at::Tensor() : keys_and_values(in.k, in.v)) {}
  Travelling(at::Tensor x, at::Tensor y) : first(std::move(x)), second(std::move(y)) {}

  /// What `change` makes of it.
  template <class Change>
  Travelling with(const Change& change) const {
    return {change(first), second.defined() ? change(second) : at::Tensor()};
  }
  /// Views of queries, keys and values.
  Triple parts() const {
    const at::Tensor& pairs = second.defined() ? second : first;
    const std::int64_t queries = first.size(3) - (second.defined() ? 0 : 2), keys = pairs.size(3) - 2;
    return {queries == 1 ? first.select(3, 0) : first.narrow(3, 0, queries), pairs.select(3, keys),
            pairs.select(3, keys + 1)};
  }
};

Travelling sent_to_heads(const comm::Group& ranks, const Triple& in) {
  return Travelling(in).with([&](const at::Tensor& x) { return to_heads(ranks, x); });
}

/// Those of this rank's heads.
AttentionOptions options_of_heads(const comm::Group& ranks, const Triple& mine, const AttentionOptions& options) {
  AttentionOptions own = options;
  const std::int64_t heads = mine.k.size(2) * grouped(mine.q).size(3);
  own.head_offset += ranks.rank() * heads;
  for (at::Tensor* of_heads : {&own.sinks, &own.bias})
    if (of_heads->defined()) *of_heads = of_heads->narrow(0, ranks.rank() * heads, heads);
  return own;
}

}  // namespace

AttentionOutput attention_by_heads(const comm::Group& ranks, const Triple& in, const AttentionOptions& options) {
  const Triple mine = sent_to_heads(ranks, in).parts();
  const auto made = kernels::attention(mine.q, mine.k, mine.v, options_of_heads(ranks, mine, options));
  return {to_tokens(ranks, made.out).contiguous(), made.logsumexp};
}

void attention_by_heads_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                                 const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                                 const at::Tensor& dbias, const at::Tensor& dsinks) {
  const Travelling all = sent_to_heads(ranks, in),
                   gradients = all.with([](const at::Tensor&x) { return at::empty_like(x); });
  const at::Tensor outs = to_heads(ranks, at::stack({dout, forward.out}, 3));
  const Triple mine = all.parts(), dmine = gradients.parts();
  const AttentionOptions own = options_of_heads(ranks, mine, options);
  const AttentionOutput made{outs.select(3, 1).contiguous(), forward.logsumexp};
  const at::Tensor dmade = outs.select(3, 0).contiguous();
  at::Tensor own_dbias;
  if (dbias.defined()) own_dbias = dbias.zero_().narrow(0, ranks.rank() * own.bias.size(0), own.bias.size(0));
  kernels::attention_backward(dmade, mine.q, mine.k, mine.v, made, own, dmine.q, dmine.k, dmine.v, own_dbias);
  if (dsinks.defined()) {
    const std::int64_t heads = own.sinks.size(0);
    dsinks.zero_().narrow(0, ranks.rank() * heads, heads).copy_(kernels::sink_gradient(dmade, made, own.sinks));
  }
  const Triple back = gradients.with([&](const at::Tensor& x) { return to_tokens(ranks, x); }).parts();
  into.q.copy_(back.q.reshape(into.q.sizes()));
  into.k.copy_(back.k);
  into.v.copy_(back.v);
}

}  // namespace megatron::model::sequence
