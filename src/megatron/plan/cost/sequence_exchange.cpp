#include "megatron/plan/cost/sequence_exchange.h"

#include <algorithm>

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
  return config.train.micro_batch_size * config.data.seq_length * 2 * local_groups(attention, config.parallel.tp) *
         attention.head_size * element_bytes(config);
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

std::int64_t exchanged_elements(const config::RunConfig& config, const SelfAttention& attention,
                                SequenceExchange exchange) {
  const std::int64_t cp = config.parallel.cp, tp = config.parallel.tp,
                     tokens = config.train.micro_batch_size * config.data.seq_length / cp;
  const std::int64_t keys_and_values = 2 * local_groups(attention, config.parallel.tp) * attention.head_size;
  if (exchange != SequenceExchange::AllToAll) return tokens * keys_and_values * (cp - 1);
  return tokens * (keys_and_values + 2 * attention.query_rows() / tp) * (cp - 1) / cp;
}

std::int64_t gathered_bytes(const config::RunConfig& config, const ModelShape& shape) {
  constexpr std::int64_t kCopies = 3;
  if (config.parallel.cp == 1 || sequence_exchange(config, shape) != SequenceExchange::AllGather) return 0;
  return kCopies * whole_bytes(config, shape.layer(0).attention());
}

MovedBytes moved_bytes(const config::RunConfig& config, const SelfAttention& attention, SequenceExchange exchange) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const std::int64_t tokens = config.train.micro_batch_size * config.data.seq_length / config.parallel.cp;
  const double n = config.parallel.cp, e = number(element_bytes(config)), w = std::max(e, 4.0),
               v = attention.causal ? n + 0.5 : 2 * n, q = number(tokens * attention.query_rows()) / config.parallel.tp,
               k = number(tokens * 2 * local_groups(attention, config.parallel.tp) * attention.head_size);
  switch (exchange) {
    case SequenceExchange::AllGather:
      return {((2 + 2 * n) * k + 2 * q) * e, (4 + (attention.causal ? 6.5 : 8) * n) * k * e};
    case SequenceExchange::AllToAll:
      return {(6 * (q + k) + 4 * q) * e, (12 * (q + k) + 16 * q) * e};
    case SequenceExchange::Ring:
      break;
  }
  return {q * (v * (6 * w + e) + 2 * w + e) + 2 * k * e,
          (q + k) * (v * (2 * w + e) + 2 * w + e) + k * (2 * e + (4 * n - 4) * w)};
}

}  // namespace megatron::plan
