#include <algorithm>
#include <numeric>

#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {

void check_sequence_shares(const config::RunConfig& config, Rules& rules) {
  const config::ParallelConfig& parallel = config.parallel;
  const config::ModelConfig& model = config.model;
  const std::int64_t cp = parallel.cp, tp = parallel.tp, length = config.data.seq_length;
  if (cp <= 1 || cp > kMaxRanks || tp < 1 || tp > kMaxRanks) return;
  rules.require(model.head == "tokens", "parallel.cp is for training on tokens, not for the head of a task.",
                concat("cp ", cp, ", model.head ", model.head), "--cp 1 (the default)");
  rules.require(!parallel.variable_seq_lengths, "parallel.cp needs samples of one length.",
                "parallel.variable_seq_lengths true", "--parallel.variable_seq_lengths false (the default)");
  // Two chunks of each rank and, where tp splits the stream too, parts of one length of both together.
  const bool by_sequence = parallel.sp || config.train.distribute_saved_activations;
  const std::int64_t unit = by_sequence ? std::lcm(2 * cp, cp * tp) : 2 * cp;
  const auto require_chunks = [&](const char* option, const char* flag, std::int64_t tokens) {
    rules.require(tokens % unit == 0,
                  concat(option, " must divide by 2 x parallel.cp",
                         by_sequence ? " and, where parallel.sp or train.distribute_saved_activations is on, by "
                                       "parallel.cp x parallel.tp."
                                     : ": each rank has two chunks of a sequence."),
                  concat(tokens, " tokens, cp ", cp, by_sequence ? concat(", tp ", tp) : ""),
                  concat(flag, " ", next_multiple(tokens, unit)));
  };
  require_chunks("data.seq_length", "--seq-length", length);
  if (config::model_traits(model.architecture).encoder_decoder)
    require_chunks("data.decoder_seq_length", "--data.decoder_seq_length", config.data.decoder_seq_length);
  if (parallel.cp_comm_type != "a2a") return;
  const std::int64_t heads = model.num_attention_heads,
                     groups = model.num_query_groups > 0 ? model.num_query_groups : heads;
  rules.require(
      heads % (tp * cp) == 0 && groups % (tp * cp) == 0,
      "parallel.cp_comm_type a2a divides heads: model.num_attention_heads and model.num_query_groups must "
      "divide by parallel.tp x parallel.cp.",
      concat(heads, " heads", groups != heads ? concat(" in ", groups, " groups") : "", ", tp ", tp, ", cp ", cp),
      "--cp-comm-type allgather");
}

}  // namespace megatron::plan
