#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/meaning.h"
#include "megatron/config/tables/model_kinds.h"

// The options of [model] that describe mixtures of experts, latent attention and multi-token prediction, what
// DeepSeek's models are made of; and first weights.
namespace megatron::config {

/// Options of experts that layers carry as one value (plan/layer.h).
struct ExpertsVariant {
  std::int64_t num_experts = 0;
  std::int64_t moe_router_topk = 2;
  std::int64_t moe_layer_freq = 1;
  std::int64_t first_k_dense_replace = 0;
  std::int64_t moe_ffn_hidden_size = 0;
  std::int64_t moe_shared_expert_intermediate_size = 0;
  bool moe_shared_expert_gate = false;
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  double moe_router_topk_scaling_factor = 1;
  std::int64_t moe_router_num_groups = 0;
  std::int64_t moe_router_group_topk = 0;
  std::int64_t moe_router_group_best = 0;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 0.001;
  double moe_expert_capacity_factor = 0;
  std::string moe_token_drop_policy = "probs";
  double moe_aux_loss_coeff = 0;
  double moe_z_loss_coeff = 0;
  double moe_input_jitter_eps = 0;
  bool moe_router_force_load_balancing = false;

  friend bool operator==(const ExpertsVariant&, const ExpertsVariant&) = default;

  void visit_experts(auto& v) {
    v("num_experts", num_experts,
      "Experts of a layer, MLPs of which each token passes moe_router_topk; 0: every token passes the same MLP.",
      "num-experts", when("model.architecture", kinds_with(&ModelTraits::causal)));
    v("moe_router_topk", moe_router_topk, "Experts that a token passes.", "moe-router-topk", when("model.num_experts"));
    v("moe_layer_freq", moe_layer_freq,
      "Layers 0, n, 2n, … have experts, the others an MLP of ffn_hidden_size; 1: all have.", "moe-layer-freq",
      when("model.num_experts"));
    v("first_k_dense_replace", first_k_dense_replace, "So many layers at the beginning have no experts (DeepSeek).",
      when("model.num_experts"));
    v("moe_ffn_hidden_size", moe_ffn_hidden_size, "Width of each expert; 0: ffn_hidden_size.", "moe-ffn-hidden-size",
      when("model.num_experts"));
    v("moe_shared_expert_intermediate_size", moe_shared_expert_intermediate_size,
      "Width of an MLP that every token passes besides its experts; 0: none.", "moe-shared-expert-intermediate-size",
      when("model.num_experts"));
    v("moe_shared_expert_gate", moe_shared_expert_gate,
      "Multiply what the shared expert gives by a sigmoid of each token (Qwen2-MoE).", "moe-shared-expert-gate",
      when("model.moe_shared_expert_intermediate_size"));
    v("moe_router_score_function", moe_router_score_function,
      "What makes scores of the router's logits: softmax over all experts, or sigmoid of each.",
      "moe-router-score-function", Choices({"softmax", "sigmoid"}), when("model.num_experts"));
    v("moe_router_pre_softmax", moe_router_pre_softmax,
      "softmax: an expert counts as much as its share of all experts; else of those that are chosen.",
      "moe-router-pre-softmax", when("model.num_experts"));
    v("moe_router_topk_scaling_factor", moe_router_topk_scaling_factor, "Multiplies what each expert counts.",
      "moe-router-topk-scaling-factor", when("model.num_experts"));
    v("moe_router_num_groups", moe_router_num_groups,
      "Equal groups of experts, of which a token chooses moe_router_group_topk first; 0: one group.",
      "moe-router-num-groups", when("model.num_experts"));
    v("moe_router_group_topk", moe_router_group_topk,
      "Groups that a token's experts are in: those whose moe_router_group_best experts have the greatest scores "
      "together.",
      "moe-router-group-topk", when("model.moe_router_num_groups"));
    v("moe_router_group_best", moe_router_group_best,
      "Of how many of its best experts a group's score is the sum; 0: moe_router_topk / moe_router_group_topk, as in "
      "Megatron-LM (DeepSeek-V2: 1, V3: 2).",
      when("model.moe_router_num_groups"));
    v("moe_router_enable_expert_bias", moe_router_enable_expert_bias,
      "Add a bias to each expert's score where experts are chosen, which evens out the load without a loss.",
      "moe-router-enable-expert-bias", when("model.num_experts"));
    v("moe_router_bias_update_rate", moe_router_bias_update_rate,
      "How far each step raises the bias of an expert that got less than the mean, and lowers that of one that got "
      "more.",
      "moe-router-bias-update-rate", Affects::Step, when("model.moe_router_enable_expert_bias"));
    v("moe_expert_capacity_factor", moe_expert_capacity_factor,
      "In training an expert takes so many times its even share of a sequence's tokens; 0: nothing is dropped.",
      "moe-expert-capacity-factor", Affects::Step, when("model.num_experts"));
    v("moe_token_drop_policy", moe_token_drop_policy,
      "What an expert drops: the tokens for which it counts least, or the last ones of the sequence.",
      "moe-token-drop-policy", Affects::Step, Choices({"probs", "position"}), when("model.moe_expert_capacity_factor"));
    v("moe_aux_loss_coeff", moe_aux_loss_coeff,
      "Coefficient of the loss that evens out the load of experts, of each sequence by itself; 0: none.",
      "moe-aux-loss-coeff", Affects::Step, when("model.num_experts"));
    v("moe_z_loss_coeff", moe_z_loss_coeff,
      "Coefficient of the mean square of the log-sum-exp of the router's logits, which keeps them small; 0: none.",
      "moe-z-loss-coeff", Affects::Step, when("model.num_experts"));
    v("moe_input_jitter_eps", moe_input_jitter_eps,
      "In training, routers multiply what they read by random numbers from 1 - this to 1 + this; 0: they do not.",
      "moe-input-jitter-eps", Affects::Step, when("model.num_experts"));
    v("moe_router_force_load_balancing", moe_router_force_load_balancing,
      "For benchmarks: in training and evaluation, routers choose by random numbers in place of their logits, so that "
      "experts get about equally many tokens. What is trained so is of no use.",
      "moe-router-force-load-balancing", Affects::Step, when("model.num_experts"));
  }
};

/// Options of multi-head latent attention (DeepSeek-AI 2024, section 2.1).
struct LatentVariant {
  bool multi_latent_attention = false;
  std::int64_t q_lora_rank = 0;
  std::int64_t kv_lora_rank = 32;
  std::int64_t qk_head_dim = 128;
  std::int64_t qk_pos_emb_head_dim = 64;
  std::int64_t v_head_dim = 128;
  double mscale = 1;
  double mscale_all_dim = 0;

  friend bool operator==(const LatentVariant&, const LatentVariant&) = default;

  void visit_latents(auto& v) {
    v("multi_latent_attention", multi_latent_attention,
      "Compress keys and values to kv_lora_rank normalized numbers a token, of which each head's are made, and rotate "
      "qk_pos_emb_head_dim features that all heads' keys share (DeepSeek-V2).",
      "multi-latent-attention", when("model.architecture", kinds_with(&ModelTraits::causal)));
    v("q_lora_rank", q_lora_rank, "Compress queries too, to so many normalized numbers a token; 0: they are not.",
      "q-lora-rank", when("model.multi_latent_attention"));
    v("kv_lora_rank", kv_lora_rank, "Numbers that keys and values are compressed to.", "kv-lora-rank",
      when("model.multi_latent_attention"));
    v("qk_head_dim", qk_head_dim, "Features of a head's query and key that are not rotated.", "qk-head-dim",
      when("model.multi_latent_attention"));
    v("qk_pos_emb_head_dim", qk_pos_emb_head_dim,
      "Features of a head's query that are rotated, and of the one key that is.", "qk-pos-emb-head-dim",
      when("model.multi_latent_attention"));
    v("v_head_dim", v_head_dim, "Features of a head's value.", "v-head-dim", when("model.multi_latent_attention"));
    v("mscale", mscale,
      "yarn: what is rotated is multiplied by 0.1 mscale ln(rope_scaling_factor) + 1, over the same with "
      "mscale_all_dim, where yarn_attention_factor is 0.",
      "mscale", when("model.multi_latent_attention"), when("model.rope_scaling_type", {"yarn"}));
    v("mscale_all_dim", mscale_all_dim,
      "yarn: scores are multiplied by the square of 0.1 mscale_all_dim ln(rope_scaling_factor) + 1.", "mscale-all-dim",
      when("model.multi_latent_attention"), when("model.rope_scaling_type", {"yarn"}));
  }
};

/// Options of multi-token prediction (DeepSeek-AI 2024, section 2.2).
struct MultiTokenVariant {
  std::int64_t mtp_num_layers = 0;
  double mtp_loss_scaling_factor = 0.1;

  void visit_multi_token(auto& v) {
    v("mtp_num_layers", mtp_num_layers,
      "Depths of multi-token prediction (DeepSeek-V3): each is a layer more that predicts one token further ahead; 0: "
      "none.",
      "mtp-num-layers", OnlyInTraining(), when("model.architecture", kinds_with(&ModelTraits::causal)));
    v("mtp_loss_scaling_factor", mtp_loss_scaling_factor, "Multiplies the mean of the depths' losses.",
      "mtp-loss-scaling-factor", Affects::Step, OnlyInTraining(), when("model.mtp_num_layers"));
  }
};

/// How the first weights of a model are drawn.
struct InitialWeights {
  double init_method_std = 0.02;
  bool init_method_xavier_uniform = false;
  double embedding_init_method_std = 0;

  void visit_init(auto& v) {
    v("init_method_std", init_method_std, "Standard deviation of initial weights; output layers: / sqrt(2 num_layers).",
      "init-method-std", Affects::Step);
    v("init_method_xavier_uniform", init_method_xavier_uniform,
      "Draw each matrix evenly within sqrt(6 / (rows + columns)) of 0 instead (Glorot and Bengio 2010).",
      "init-method-xavier-uniform", Affects::Step);
    v("embedding_init_method_std", embedding_init_method_std,
      "Standard deviation of the first embeddings; 0: drawn as other weights.", "embedding-init-method-std",
      Affects::Step);
  }
};

}  // namespace megatron::config
