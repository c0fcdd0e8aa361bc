#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "megatron/model/sequence/exchanges.h"

// Every rank gathers the keys and values of the whole sequence. In causal attention a piece of its queries then is the
// end of a shorter sequence: attention over the keys up to the piece's last token.
namespace megatron::model::sequence {
namespace {

/// Keys and values of the whole sequence [S, b, g, 2, d], by position.
at::Tensor gathered(const comm::Group& ranks, const Triple& in) {
  return by_position(ranks.all_gather(keys_and_values(in.k, in.v)), ranks.size());
}

}  // namespace

AttentionOutput gathered_attention(const comm::Group& ranks, const Triple& in, const AttentionOptions& options) {
  const at::Tensor all = gathered(ranks, in);
  const Lengths whole = whole_lengths(ranks, in);
  std::vector<at::Tensor> outs, logsumexps;
  for (const SequenceChunk& piece : pieces_of(ranks.size(), ranks.rank(), in.q.size(0))) {
    const std::int64_t end = end_of_seen(options, all.size(0), piece.positions);
    const at::Tensor seen = all.narrow(0, 0, end);
    const auto made = kernels::attention(piece.rows(in.q), seen.select(3, 0), seen.select(3, 1),
                                         options_of_part(options, whole, piece.positions, {0, end}));
    outs.push_back(made.out);
    logsumexps.push_back(made.logsumexp);
  }
  return {at::cat(outs), at::cat(logsumexps, 2)};
}

void gathered_attention_backward(const comm::Group& ranks, const at::Tensor& dout, const Triple& in,
                                 const AttentionOutput& forward, const AttentionOptions& options, const Triple& into,
                                 const at::Tensor& dbias) {
  const at::Tensor all = gathered(ranks, in), gradients = at::zeros_like(all);
  const Lengths whole = whole_lengths(ranks, in);
  if (dbias.defined()) dbias.zero_();
  const auto pieces = pieces_of(ranks.size(), ranks.rank(), in.q.size(0));
  for (std::size_t i = pieces.size(); i-- > 0;) {
    const SequenceChunk& piece = pieces[i];
    const std::int64_t end = end_of_seen(options, all.size(0), piece.positions);
    const at::Tensor seen = all.narrow(0, 0, end), sum = gradients.narrow(0, 0, end);
    const bool first = i + 1 == pieces.size();  // the longest, which nothing is added to yet
    const at::Tensor own = first ? sum : at::empty(sum.sizes(), sum.options());
    const AttentionOutput of_piece{piece.rows(forward.out),
                                   forward.logsumexp.narrow(2, piece.row, piece.positions.size()).contiguous()};
    const AttentionOptions part = options_of_part(options, whole, piece.positions, {0, end});
    const at::Tensor dpart = dbias.defined() ? at::empty_like(part.bias) : at::Tensor();
    kernels::attention_backward(piece.rows(dout), piece.rows(in.q), seen.select(3, 0), seen.select(3, 1), of_piece,
                                part, piece.rows(into.q), own.select(3, 0), own.select(3, 1), dpart);
    if (dbias.defined()) bias_of_part(dbias, whole, piece.positions, {0, end}).add_(dpart);
    if (!first) sum.add_(own);
  }
  const at::Tensor mine = ranks.reduce_scatter(by_rank(gradients, ranks.size()));
  into.k.copy_(mine.select(3, 0));
  into.v.copy_(mine.select(3, 1));
}

}  // namespace megatron::model::sequence
