#include "megatron/plan/cost/sequence_exchange.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"

namespace megatron::plan {
namespace {

/// Groups of keys and values on a tensor-parallel rank.
std::int64_t local_groups(const SelfAttention& attention, int tp) {
  return std::max<std::int64_t>(attention.groups / tp, 1);
}

/// Of the keys and values of whole sequences of a microbatch, those of this rank's heads.
std::int64_t whole_bytes(const config::RunConfig& config, const SelfAttention& attention) {
  return config.train.micro_batch_size * std::max(config.data.seq_length, config.data.decoder_seq_length) * 2 *
         local_groups(attention, config.parallel.tp) * attention.head_size * element_bytes(config);
}

/// An attention of a layer whose keys and values ranks exchange, in elements of a rank.
struct Exchanged {
  std::int64_t queries = 0, pairs = 0;  ///< pairs: keys and values
  bool causal = false;
};

std::vector<Exchanged> exchanged_in(const config::RunConfig& config, const LayerSpec& layer) {
  const config::DataConfig& data = config.data;
  const LayerTokens tokens = tokens_of(layer, config.train.micro_batch_size, data.seq_length, data.decoder_seq_length);
  const std::int64_t own = tokens.sequences * tokens.length / config.parallel.cp, tp = config.parallel.tp;
  const SelfAttention& attention = layer.attention();
  std::vector<Exchanged> all{{.queries = own * attention.query_rows() / tp,
                              .pairs = own * 2 * local_groups(attention, config.parallel.tp) * attention.head_size,
                              .causal = attention.causal}};
  for (const Branch& branch : layer.branches)
    if (const auto* const across = std::get_if<CrossAttention>(&branch.inner))
      all.push_back(
          {.queries = own * across->query_rows() / tp,
           .pairs = tokens.sequences * tokens.encoder_length / config.parallel.cp * 2 * across->query_rows() / tp});
  return all;
}

MovedBytes moved_of(const Exchanged& exchanged, double n, double e, SequenceExchange exchange) {
  const double w = std::max(e, 4.0), v = exchanged.causal ? n + 0.5 : 2 * n, q = static_cast<double>(exchanged.queries),
               k = static_cast<double>(exchanged.pairs);
  switch (exchange) {
    case SequenceExchange::AllGather:
      return {((2 + 2 * n) * k + 2 * q) * e, (4 + (exchanged.causal ? 6.5 : 8) * n) * k * e};
    case SequenceExchange::AllToAll:
      return {(6 * (q + k) + 4 * q) * e, (12 * (q + k) + 16 * q) * e};
    case SequenceExchange::Ring:
      break;
  }
  return {q * (v * (6 * w + e) + 2 * w + e) + 2 * k * e,
          (q + k) * (v * (2 * w + e) + 2 * w + e) + k * (2 * e + (4 * n - 4) * w)};
}

}  // namespace

SequenceExchange sequence_exchange(const config::RunConfig& config, const ModelShape& shape) {
  const config::ParallelConfig& parallel = config.parallel;
  for (const SequenceExchange each : {SequenceExchange::AllGather, SequenceExchange::AllToAll, SequenceExchange::Ring})
    if (parallel.cp_comm_type == name_of(each)) return each;
  const std::int64_t ranks = std::int64_t{parallel.tp} * parallel.cp;
  const LayerSpec layer = shape.layer(0);
  const SelfAttention& attention = layer.attention();
  if (attention.heads % ranks == 0 && attention.groups % ranks == 0) return SequenceExchange::AllToAll;
  const std::int64_t kept = layer_activation_bytes(config, layer);
  return whole_bytes(config, attention) <= kept ? SequenceExchange::AllGather : SequenceExchange::Ring;
}

std::int64_t exchanged_elements(const config::RunConfig& config, const LayerSpec& layer, SequenceExchange exchange) {
  const std::int64_t cp = config.parallel.cp;
  std::int64_t sent = 0;
  for (const Exchanged& each : exchanged_in(config, layer))
    sent += exchange == SequenceExchange::AllToAll ? (each.pairs + 2 * each.queries) * (cp - 1) / cp
                                                   : each.pairs * (cp - 1);
  return sent;
}

std::int64_t gathered_bytes(const config::RunConfig& config, const ModelShape& shape) {
  constexpr std::int64_t kCopies = 3;
  if (config.parallel.cp == 1 || sequence_exchange(config, shape) != SequenceExchange::AllGather) return 0;
  return kCopies * whole_bytes(config, shape.layer(0).attention());
}

MovedBytes moved_bytes(const config::RunConfig& config, const LayerSpec& layer, SequenceExchange exchange) {
  MovedBytes sum;
  for (const Exchanged& each : exchanged_in(config, layer)) {
    const MovedBytes moved = moved_of(each, config.parallel.cp, static_cast<double>(element_bytes(config)), exchange);
    sum.forward += moved.forward;
    sum.backward += moved.backward;
  }
  return sum;
}

}  // namespace megatron::plan
