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

}  // namespace

SequenceExchange sequence_exchange(const config::RunConfig& config, const ModelShape& shape) {
  const config::ParallelConfig& parallel = config.parallel;
  for (const SequenceExchange each : {SequenceExchange::AllGather, SequenceExchange::AllToAll, SequenceExchange::Ring})
    if (parallel.cp_comm_type == name_of(each)) return each;
  const std::int64_t ranks = std::int64_t{parallel.tp} * parallel.cp;
  const LayerSpec layer = shape.layer(0);
  const SelfAttention& attention = layer.attention();
  if (attention.heads % ranks == 0 && attention.groups % ranks == 0) return SequenceExchange::AllToAll;
  const std::int64_t whole = config.train.micro_batch_size * config.data.seq_length * 2 *
                             local_groups(attention, parallel.tp) * attention.head_size * element_bytes(config);
  return whole <= layer_activation_bytes(config, layer) ? SequenceExchange::AllGather : SequenceExchange::Ring;
}

std::int64_t exchanged_elements(const config::RunConfig& config, const SelfAttention& attention,
                                SequenceExchange exchange) {
  const std::int64_t cp = config.parallel.cp, tp = config.parallel.tp,
                     tokens = config.train.micro_batch_size * config.data.seq_length / cp;
  const std::int64_t keys_and_values = 2 * local_groups(attention, config.parallel.tp) * attention.head_size;
  if (exchange != SequenceExchange::AllToAll) return tokens * keys_and_values * (cp - 1);
  return tokens * (keys_and_values + 2 * attention.query_rows() / tp) * (cp - 1) / cp;
}

}  // namespace megatron::plan
