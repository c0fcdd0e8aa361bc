#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/megatron/translation.h"

// Mixtures of experts.
namespace megatron::config {
namespace {

/// The loss that evens out the load: of those of Megatron-LM the ones that are a sequence's by itself, where a
/// microbatch is one.
void balance(Translation& c, ModelConfig& m) {
  const std::vector<std::string> types = c.args.list("moe-router-load-balancing-type");
  const std::vector<std::string> coefficients = c.args.list("moe-aux-loss-coeff");
  if (types.size() > 1 || coefficients.size() > 1)
    return c.miss(types.size() > 1 ? "moe-router-load-balancing-type" : "moe-aux-loss-coeff",
                  "several auxiliary losses at once");
  const std::string type = types.empty() ? "aux_loss" : types.front();
  if (type == "none") return c.ignore("moe-aux-loss-coeff", "with --moe-router-load-balancing-type none");
  if (type != "aux_loss" && type != "seq_aux_loss")
    return c.miss("moe-router-load-balancing-type", "balancing by " + type);
  if (!coefficients.empty() && !read_float(coefficients.front(), m.moe_aux_loss_coeff))
    c.require(false, "--moe-aux-loss-coeff takes a number.", coefficients.front(), "--moe-aux-loss-coeff 0.01");
  const std::int64_t micro = c.args.has("micro-batch-size") ? c.args.integer("micro-batch-size") : 1;
  c.require(type == "seq_aux_loss" || m.moe_aux_loss_coeff == 0 || micro == 1,
            "The auxiliary loss is of each sequence here: aux_loss, which is of a micro batch, would be another loss "
            "for micro batches of several sequences.",
            concat("--moe-router-load-balancing-type aux_loss, --micro-batch-size ", micro),
            "--moe-router-load-balancing-type seq_aux_loss");
}

/// What an expert takes is counted in each sequence here, in Megatron-LM in what a rank's router sees of a microbatch.
void capacity(Translation& c, ModelConfig& m) {
  m.moe_token_drop_policy = c.args.text("moe-token-drop-policy");
  if (!c.args.has("moe-expert-capacity-factor")) return;
  m.moe_expert_capacity_factor = std::max(0.0, c.args.number("moe-expert-capacity-factor"));
  const bool whole = c.args.integer("tensor-model-parallel-size") == 1 || !c.args.has("sequence-parallel");
  const bool one = !c.args.has("micro-batch-size") || c.args.integer("micro-batch-size") == 1;
  c.require(m.moe_expert_capacity_factor == 0 || (one && whole),
            "An expert's capacity is that of each sequence here: of micro batches of several sequences, or of parts of "
            "one with --sequence-parallel, Megatron-LM drops other tokens.",
            concat("--moe-expert-capacity-factor ", m.moe_expert_capacity_factor, whole ? "" : ", --sequence-parallel"),
            whole ? "--micro-batch-size 1"
            : one ? "leave --sequence-parallel out"
                  : "--micro-batch-size 1, and leave --sequence-parallel out");
}

/// Up to the next `mark`, which is taken too.
std::string_view take_until(std::string_view& text, char mark) {
  const std::size_t end = std::min(text.find(mark), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

/// Which layers have experts, of "([0]*2+[1]*4)", "[0,1,1]", or "0,1,1" as it is saved: as many as there are layers.
/// Empty: of anything else.
std::vector<bool> expert_pattern(std::string text, std::int64_t layers) {
  std::erase_if(text, [](char letter) { return letter == '(' || letter == ')' || letter == ' '; });
  constexpr std::int64_t kMaxPattern = 1 << 14;
  std::vector<bool> pattern;
  if (layers > kMaxPattern) return {};
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view term = take_until(rest, '+');
    std::string list(take_until(term, '*'));
    std::int64_t times = 1;
    if (!term.empty() && !read_integer(std::string(term), times)) return {};
    std::erase_if(list, [](char letter) { return letter == '[' || letter == ']'; });
    std::vector<bool> part;
    std::string_view numbers = list;
    while (!numbers.empty()) {
      const std::string_view number = take_until(numbers, ',');
      if ((number != "0" && number != "1") || static_cast<std::int64_t>(part.size()) >= layers) return {};
      part.push_back(number == "1");
    }
    const std::int64_t room = layers - static_cast<std::int64_t>(pattern.size());
    if (part.empty() || times < 0 || times > room / static_cast<std::int64_t>(part.size())) return {};
    for (std::int64_t i = 0; i < times; ++i) pattern.insert(pattern.end(), part.begin(), part.end());
  }
  return static_cast<std::int64_t>(pattern.size()) == layers ? pattern : std::vector<bool>();
}

/// Every nth layer from one on, or each but the first ones.
void layers_with_experts(Translation& c, ModelConfig& m) {
  const std::string frequency = c.args.text("moe-layer-freq");
  if (read_integer(frequency, m.moe_layer_freq)) return;
  const std::vector<bool> pattern = expert_pattern(frequency, m.num_layers);
  const auto size = static_cast<std::int64_t>(pattern.size());
  const auto next = [&](std::int64_t from) {
    return std::find(pattern.begin() + std::min(from, size), pattern.end(), true) - pattern.begin();
  };
  const std::int64_t first = next(0), second = next(first + 1);
  // One that has experts alone is the last layer, the first, or so far from the beginning that no other is as far.
  const std::int64_t period = second < size || first + 1 == size ? std::max<std::int64_t>(1, second - first)
                              : first == 0                       ? size
                                                                 : first;
  bool regular = size > 0 && first < size;
  for (std::int64_t i = 0; i < size && regular; ++i)
    regular = pattern[static_cast<std::size_t>(i)] == (i % period == 0 && i >= first);
  if (!regular)
    return c.miss("moe-layer-freq",
                  "experts in layers of a pattern; here every nth layer has some, or all but the "
                  "first: ([0]*k+[1]*n)");
  m.moe_layer_freq = period;
  m.first_k_dense_replace = first;
}

}  // namespace

void translate_experts(Translation& c) {
  ModelConfig& m = c.run.model;
  if (c.args.has("num-experts")) m.num_experts = c.args.integer("num-experts");
  const std::int64_t ranks = c.args.integer("expert-model-parallel-size");
  c.require(ranks == 1 || m.num_experts > 0, "--expert-model-parallel-size needs --num-experts.",
            concat("--expert-model-parallel-size ", ranks), "--expert-model-parallel-size 1");
  if (m.num_experts == 0) {
    for (const char* name : {"moe-router-topk",
                             "moe-layer-freq",
                             "moe-ffn-hidden-size",
                             "moe-shared-expert-intermediate-size",
                             "moe-shared-expert-gate",
                             "moe-router-pre-softmax",
                             "moe-router-topk-scaling-factor",
                             "moe-router-score-function",
                             "moe-router-dtype",
                             "expert-tensor-parallel-size",
                             "num-experts",
                             "moe-z-loss-coeff",
                             "moe-input-jitter-eps",
                             "moe-router-force-load-balancing",
                             "moe-router-num-groups",
                             "moe-router-group-topk",
                             "moe-router-enable-expert-bias",
                             "moe-router-bias-update-rate",
                             "moe-expert-capacity-factor",
                             "moe-token-drop-policy",
                             "moe-aux-loss-coeff",
                             "moe-router-load-balancing-type"})
      c.ignore(name, "without --num-experts");
    return;
  }
  m.moe_router_topk = c.args.integer("moe-router-topk");
  layers_with_experts(c, m);
  if (c.args.has("moe-ffn-hidden-size")) m.moe_ffn_hidden_size = c.args.integer("moe-ffn-hidden-size");
  if (c.args.has("moe-shared-expert-intermediate-size"))
    m.moe_shared_expert_intermediate_size = c.args.integer("moe-shared-expert-intermediate-size");
  m.moe_shared_expert_gate = c.args.has("moe-shared-expert-gate");
  m.moe_router_score_function = c.args.text("moe-router-score-function");
  if (m.moe_router_score_function == "sqrtsoftplus") c.miss("moe-router-score-function", "scores by sqrtsoftplus");
  m.moe_router_pre_softmax = c.args.has("moe-router-pre-softmax");
  if (c.args.has("moe-router-topk-scaling-factor"))
    m.moe_router_topk_scaling_factor = c.args.number("moe-router-topk-scaling-factor");
  if (c.args.has("moe-router-num-groups")) m.moe_router_num_groups = c.args.integer("moe-router-num-groups");
  if (c.args.has("moe-router-group-topk")) m.moe_router_group_topk = c.args.integer("moe-router-group-topk");
  m.moe_router_enable_expert_bias = c.args.has("moe-router-enable-expert-bias");
  m.moe_router_bias_update_rate = c.args.number("moe-router-bias-update-rate");
  capacity(c, m);
  if (c.args.has("moe-z-loss-coeff")) m.moe_z_loss_coeff = c.args.number("moe-z-loss-coeff");
  m.moe_router_force_load_balancing = c.args.has("moe-router-force-load-balancing");
  if (c.args.has("moe-input-jitter-eps")) m.moe_input_jitter_eps = c.args.number("moe-input-jitter-eps");
  balance(c, m);
}

}  // namespace megatron::config
