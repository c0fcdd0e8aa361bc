#include <algorithm>
#include <numeric>

#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {

namespace {

void check_expert_groups(const config::ModelConfig& model, Rules& rules) {
  const std::int64_t groups = model.moe_router_num_groups, taken = model.moe_router_group_topk,
                     top_k = model.moe_router_topk, count = model.num_experts;
  const std::string got = concat(count, " experts, top k ", top_k, ", ", groups, " groups, group top k ", taken);
  const std::string none = "--model.moe_router_num_groups 0 (the default)";
  if (groups <= 0 || groups > kMaxExperts || count < 1 || count > kMaxExperts) {
    rules.require(taken <= 0, "model.moe_router_group_topk needs model.moe_router_num_groups.", got,
                  "--model.moe_router_group_topk 0 (the default)");
    return;
  }
  rules.require(count % groups == 0, "model.moe_router_num_groups must divide model.num_experts.", got,
                concat("--model.moe_router_num_groups ", std::gcd(count, groups)));
  const bool enough = taken >= 1 && taken <= groups && taken <= top_k && top_k <= taken * (count / groups);
  rules.require(enough,
                "model.moe_router_group_topk must be at least 1, at most the groups and the experts of a token, and "
                "its groups must have as many experts as a token passes.",
                got, none);
  rules.require(model.moe_router_group_best <= count / groups,
                "model.moe_router_group_best must be at most the experts of a group.",
                concat(model.moe_router_group_best, ", ", got), "--model.moe_router_group_best 0 (the default)");
}

/// Of experts and routers.
bool biased_experts(const config::ModelConfig& model) {
  return model.add_bias_linear && model.linear_bias_in != "attention";
}

/// Of experts that are split over another number of ranks than other weights, on a stage of `ranks`.
void check_split_experts(const config::RunConfig& config, std::int64_t ranks, Rules& rules) {
  const config::ModelConfig& model = config.model;
  const std::int64_t ep = config.parallel.ep, etp = config.parallel.etp;
  const std::int64_t width = model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : model.ffn_hidden_size;
  constexpr const char* kAsOthers = "--etp 0 (the default)";
  rules.require(ranks % (ep * etp) == 0,
                "parallel.ep x parallel.etp must divide the ranks of a pipeline stage, tp x cp x dp.",
                concat("ep ", ep, ", etp ", etp, ", ", ranks, " ranks"),
                ranks % etp == 0 ? concat("--ep ", std::gcd(std::gcd(model.num_experts, ep), ranks / etp)) : kAsOthers);
  rules.require(width % etp == 0, "The width of experts must divide by parallel.etp.", concat(width, ", etp ", etp),
                kAsOthers);
}

}  // namespace

void check_experts(const config::ModelConfig& model, Rules& rules) {
  rules.range<std::int64_t>("model.num_experts", model.num_experts, 0, kMaxExperts);
  rules.range<std::int64_t>("model.moe_router_topk", model.moe_router_topk, 1, kMaxExperts);
  rules.range<std::int64_t>("model.moe_layer_freq", model.moe_layer_freq, 1, kMaxLayers);
  rules.range<std::int64_t>("model.first_k_dense_replace", model.first_k_dense_replace, 0, kMaxLayers);
  rules.range<std::int64_t>("model.moe_ffn_hidden_size", model.moe_ffn_hidden_size, 0, kMaxFfn);
  rules.range<std::int64_t>("model.moe_shared_expert_intermediate_size", model.moe_shared_expert_intermediate_size, 0,
                            kMaxFfn);
  rules.range("model.moe_router_topk_scaling_factor", model.moe_router_topk_scaling_factor, 1e-6, 1e6);
  rules.range<std::int64_t>("model.moe_router_num_groups", model.moe_router_num_groups, 0, kMaxExperts);
  rules.range<std::int64_t>("model.moe_router_group_topk", model.moe_router_group_topk, 0, kMaxExperts);
  rules.range<std::int64_t>("model.moe_router_group_best", model.moe_router_group_best, 0, kMaxExperts);
  rules.range("model.moe_router_bias_update_rate", model.moe_router_bias_update_rate, 0.0, 1e3);
  rules.range("model.moe_expert_capacity_factor", model.moe_expert_capacity_factor, 0.0, 1e6);
  rules.range("model.moe_aux_loss_coeff", model.moe_aux_loss_coeff, 0.0, 1e6);
  rules.range("model.moe_z_loss_coeff", model.moe_z_loss_coeff, 0.0, 1e6);
  rules.option("model.moe_input_jitter_eps", model.moe_input_jitter_eps >= 0 && model.moe_input_jitter_eps < 1,
               "must be from 0 to below 1.", concat(model.moe_input_jitter_eps));
  if (model.num_experts == 0) return;
  const std::int64_t freq = std::max<std::int64_t>(model.moe_layer_freq, 1);
  const std::int64_t first = (model.first_k_dense_replace + freq - 1) / freq * freq;
  rules.require(
      first < std::max<std::int64_t>(model.num_layers, 1) || model.num_layers < 1,
      "some layer must have experts: one from model.first_k_dense_replace on that model.moe_layer_freq divides.",
      concat("first_k_dense_replace ", model.first_k_dense_replace, ", moe_layer_freq ", model.moe_layer_freq, " of ",
             model.num_layers, " layers"),
      "--model.first_k_dense_replace 0 (the default)");
  rules.require(model.moe_router_topk <= model.num_experts,
                "model.moe_router_topk must be at most model.num_experts: a token passes each expert once.",
                concat(model.moe_router_topk, " of ", model.num_experts),
                concat("--moe-router-topk ", std::max<std::int64_t>(1, model.num_experts)));
  rules.require(
      model.moe_router_topk > 1 || model.moe_router_pre_softmax || model.moe_router_score_function != "softmax",
      "A router that chooses one expert needs the softmax over all of them: over one it is always 1, and "
      "teaches the router nothing.",
      "moe_router_topk 1, moe_router_pre_softmax false", "--moe-router-pre-softmax");
  check_expert_groups(model, rules);
  rules.require(!model.moe_router_enable_expert_bias || model.moe_router_score_function == "sigmoid",
                "model.moe_router_enable_expert_bias needs model.moe_router_score_function sigmoid.",
                model.moe_router_score_function, "--model.moe_router_score_function sigmoid");
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  rules.require(traits.causal && !traits.encoder_decoder,
                concat("model.num_experts is for model.architecture ",
                       config::names_with(&config::ModelTraits::causal, " or "), "."),
                model.architecture, "--model.num_experts 0 (the default)");
  rules.require(!biased_experts(model) || model.moe_shared_expert_intermediate_size == 0,
                "A shared expert has no biases: model.moe_shared_expert_intermediate_size needs "
                "model.add_bias_linear false.",
                concat("moe_shared_expert_intermediate_size ", model.moe_shared_expert_intermediate_size,
                       ", add_bias_linear true"),
                "--model.add_bias_linear false");
  rules.require(!model.moe_shared_expert_gate || model.moe_shared_expert_intermediate_size > 0,
                "model.moe_shared_expert_gate needs a shared expert.", "moe_shared_expert_intermediate_size 0",
                "--model.moe_shared_expert_gate false (the default)");
  rules.require(!model.moe_router_pre_softmax || model.moe_router_score_function == "softmax",
                "model.moe_router_pre_softmax needs model.moe_router_score_function softmax.",
                model.moe_router_score_function, "--model.moe_router_pre_softmax false (the default)");
  rules.require(model.norm_position == "before", "model.num_experts needs model.norm_position before.",
                model.norm_position, "--model.norm_position before (the default)");
  rules.require(!model.parallel_residual, "model.num_experts needs branches one behind the other.",
                "parallel_residual true", "--model.parallel_residual false (the default)");
  rules.require(!model.apply_residual_connection_post_layernorm,
                "model.num_experts needs the residual connection before each norm.",
                "apply_residual_connection_post_layernorm true",
                "--model.apply_residual_connection_post_layernorm false (the default)");
}

void check_expert_layout(const config::RunConfig& config, int shares, Rules& rules) {
  const config::ModelConfig& model = config.model;
  const int ep = config.parallel.ep, etp = config.parallel.etp, tp = config.parallel.tp;
  rules.range<int>("parallel.ep", ep, 1, kMaxRanks);
  rules.range<int>("parallel.etp", etp, 0, kMaxRanks);
  if (model.num_experts < 0 || model.num_experts > kMaxExperts || ep < 1 || ep > kMaxRanks || etp < 0 ||
      etp > kMaxRanks)
    return;
  rules.require(ep == 1 || model.num_experts > 0, "parallel.ep divides experts: it needs model.num_experts.",
                concat("ep ", ep, ", no experts"), "--ep 1 (the default)");
  rules.require(etp == 0 || model.num_experts > 0, "parallel.etp splits experts: it needs model.num_experts.",
                concat("etp ", etp, ", no experts"), "--etp 0 (the default)");
  if (model.num_experts == 0) return;
  const bool apart = etp > 0 && etp != tp;
  const std::int64_t holders = apart ? std::int64_t{tp} * shares : shares;  // between which ep divides experts
  if (apart) check_split_experts(config, holders, rules);
  const std::int64_t fitting = std::gcd(std::gcd(model.num_experts, std::int64_t{ep}),
                                        apart ? std::max<std::int64_t>(1, holders / etp) : holders);
  const int cp = std::max(1, config.parallel.cp);
  rules.require(apart || shares % ep == 0,
                concat("parallel.ep must divide the data-parallel size", cp > 1 ? " x parallel.cp" : "",
                       ": those ranks hold the experts."),
                concat("ep ", ep, ", dp ", shares / cp, cp > 1 ? concat(", cp ", cp) : ""), concat("--ep ", fitting));
  rules.require(model.num_experts % ep == 0, "model.num_experts must divide by parallel.ep.",
                concat(model.num_experts, " experts, ep ", ep), concat("--ep ", fitting));
  rules.require(apart || model.moe_ffn_hidden_size % tp == 0, "model.moe_ffn_hidden_size must divide by parallel.tp.",
                concat(model.moe_ffn_hidden_size, ", tp ", tp),
                concat("--moe-ffn-hidden-size ", next_multiple(model.moe_ffn_hidden_size, tp)));
  const auto& modules = config.train.recompute_modules;
  rules.require(config.train.recompute_partial_microbatches == 0 || config.train.recompute != "selective" ||
                    std::ranges::find(modules, "mlp") == modules.end(),
                "Experts are recomputed in all microbatches: recompute_modules mlp excludes "
                "train.recompute_partial_microbatches.",
                concat("recompute_partial_microbatches ", config.train.recompute_partial_microbatches),
                "--train.recompute_partial_microbatches 0 (the default)");
  const std::int64_t shared = model.moe_shared_expert_intermediate_size;
  rules.require(shared % tp == 0, "model.moe_shared_expert_intermediate_size must divide by parallel.tp.",
                concat(shared, ", tp ", tp),
                concat("--model.moe_shared_expert_intermediate_size ", next_multiple(shared, tp)));
}

std::optional<Experts> experts_of(const config::ModelConfig& model) {
  if (model.num_experts <= 0) return std::nullopt;
  const bool sigmoid = model.moe_router_score_function == "sigmoid";
  return Experts{.expert = {.width = model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : model.ffn_hidden_size,
                            .gated = model.gated_linear_unit,
                            .bias = biased_experts(model)},
                 .count = model.num_experts,
                 .top_k = model.moe_router_topk,
                 .router = {.score = sigmoid ? Router::Score::Sigmoid : Router::Score::Softmax,
                            .unnormalized = model.moe_router_pre_softmax,
                            .scaling = model.moe_router_topk_scaling_factor,
                            .aux_loss = model.moe_aux_loss_coeff,
                            .z_loss = model.moe_z_loss_coeff,
                            .groups = std::max<std::int64_t>(1, model.moe_router_num_groups),
                            .group_top_k = std::max<std::int64_t>(1, model.moe_router_group_topk),
                            .group_best = model.moe_router_group_best,
                            .bias = model.moe_router_enable_expert_bias,
                            .linear_bias = biased_experts(model),
                            .jitter = model.moe_input_jitter_eps,
                            .drawn = model.moe_router_force_load_balancing},
                 .shared_width = model.moe_shared_expert_intermediate_size,
                 .shared_gate = model.moe_shared_expert_gate,
                 .capacity_factor = model.moe_expert_capacity_factor,
                 .drop = model.moe_token_drop_policy == "position" ? Experts::Drop::Last : Experts::Drop::Least};
}

}  // namespace megatron::plan
