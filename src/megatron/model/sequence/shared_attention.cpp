#include "megatron/model/sequence/shared_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "megatron/model/sequence/exchanges.h"

namespace megatron::model {
namespace sequence {

std::vector<SequenceChunk> pieces_of(int ranks, int rank, std::int64_t rows) {
  std::vector<SequenceChunk> pieces;
  for (const plan::Positions& each : plan::SequenceShare{ranks, rank}.pieces(rows * ranks))
    pieces.push_back({each, static_cast<std::int64_t>(pieces.size()) * each.size()});
  return pieces;
}

Lengths whole_lengths(const comm::Group& ranks, const Triple& in) {
  return {.queries = in.q.size(0) * ranks.size(), .keys = in.k.size(0) * ranks.size()};
}

std::int64_t end_of_seen(const AttentionOptions& options, std::int64_t keys, const plan::Positions& queries) {
  return options.causal ? std::min(keys, queries.end + options.ahead) : keys;
}

at::Tensor bias_of_part(const at::Tensor& bias, const Lengths& whole, const plan::Positions& queries,
                        const plan::Positions& keys) {
  return bias.narrow(1, keys.begin - queries.end + whole.queries, queries.size() + keys.size() - 1);
}

AttentionOptions options_of_part(const AttentionOptions& options, const Lengths& whole, const plan::Positions& queries,
                                 const plan::Positions& keys) {
  if (keys.end > end_of_seen(options, whole.keys, queries))
    throw std::logic_error("keys behind those that the queries see");
  AttentionOptions part = options;
  if (options.causal) {
    // The kernel lines up the ends of queries and keys.
    part.causal = keys.end > queries.begin + options.ahead;  // else all are seen
    part.ahead = part.causal ? options.ahead + queries.end - keys.end : 0;
  }
  if (options.key_lengths.defined()) part.key_lengths = options.key_lengths.sub(keys.begin).clamp_(0, keys.size());
  if (options.first_key.defined()) {
    part.first_key = options.first_key.narrow(1, queries.begin, queries.size());
    if (keys.begin > 0) part.first_key = part.first_key.sub(keys.begin).clamp_min_(0);
  }
  if (options.bias.defined()) part.bias = bias_of_part(options.bias, whole, queries, keys).contiguous();
  part.dropout.positions = whole.queries;
  part.dropout.features = whole.keys;
  part.dropout.position_offset = queries.begin;
  part.dropout.feature_offset = keys.begin;
  return part;
}

at::Tensor by_position(const at::Tensor& by_rank, int ranks) {
  const std::int64_t chunk = by_rank.size(0) / (2 * ranks);
  std::vector<at::Tensor> chunks;
  for (const plan::SequenceShare::ChunkOwner& place : plan::SequenceShare{ranks, 0}.places())
    chunks.push_back(by_rank.narrow(0, (2 * place.rank + place.piece) * chunk, chunk));
  return at::cat(chunks);
}

at::Tensor by_rank(const at::Tensor& by_position, int ranks) {
  std::vector<at::Tensor> chunks;
  for (int rank = 0; rank < ranks; ++rank)
    for (const plan::Positions& piece : plan::SequenceShare{ranks, rank}.pieces(by_position.size(0)))
      chunks.push_back(by_position.narrow(0, piece.begin, piece.size()));
  return at::cat(chunks);
}

at::Tensor keys_and_values(const at::Tensor& k, const at::Tensor& v) { return at::stack({k, v}, 3); }

}  // namespace sequence

kernels::AttentionOutput shared_attention(const SharedSequence& sequence, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const kernels::AttentionOptions& options) {
  if (sequence.ranks.size() == 1) return kernels::attention(q, k, v, options);
  switch (sequence.exchange) {
    case plan::SequenceExchange::AllToAll:
      return sequence::attention_by_heads(sequence.ranks, {q, k, v}, options);
    case plan::SequenceExchange::Ring:
      return sequence::ring_attention(sequence.ranks, {q, k, v}, options);
    case plan::SequenceExchange::AllGather:
      break;
  }
  return sequence::gathered_attention(sequence.ranks, {q, k, v}, options);
}

void shared_attention_backward(const SharedSequence& sequence, const at::Tensor& dout, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const kernels::AttentionOutput& forward,
                               const kernels::AttentionOptions& options, const at::Tensor& dq, const at::Tensor& dk,
                               const at::Tensor& dv, const at::Tensor& dbias, const at::Tensor& dsinks) {
  const bool by_heads = sequence.ranks.size() > 1 && sequence.exchange == plan::SequenceExchange::AllToAll;
  if (dsinks.defined() && !by_heads) dsinks.copy_(kernels::sink_gradient(dout, forward, options.sinks));
  if (sequence.ranks.size() == 1)
    return kernels::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
  switch (sequence.exchange) {
    case plan::SequenceExchange::AllToAll:
      return sequence::attention_by_heads_backward(sequence.ranks, dout, {q, k, v}, forward, options, {dq, dk, dv},
                                                   dbias, dsinks);
    case plan::SequenceExchange::Ring:
      return sequence::ring_attention_backward(sequence.ranks, dout, {q, k, v}, forward, options, {dq, dk, dv}, dbias);
    case plan::SequenceExchange::AllGather:
      break;
  }
  sequence::gathered_attention_backward(sequence.ranks, dout, {q, k, v}, forward, options, {dq, dk, dv}, dbias);
}

}  // namespace megatron::model
