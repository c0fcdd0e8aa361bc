#pragma once
#include <cstdint>
#include <string>

// Options of section model that are carried as one value each.
namespace megatron::config {

/// Options of attention that layers carry as one value (plan/layer.h): what reads them there finds a new one.
struct AttentionVariant {
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  bool qk_layernorm_full = false;
  bool qk_l2_norm = false;
  bool attention_output_gate = false;
  std::int64_t sliding_window = 0;
  std::int64_t window_attn_skip_freq = 0;
  bool window_attn_skip_first = false;
  std::int64_t no_rope_freq = 0;
  double rotary_base_local = 0;
  double query_pre_attn_scalar = 0;
  double attn_logit_softcapping = 0;
  std::string softmax_type = "vanilla";

  friend bool operator==(const AttentionVariant&, const AttentionVariant&) = default;
};

/// Options of layers, and of what is before and behind them, that the first models of a kind do not have.
struct LayerVariant {
  std::string norm_position = "before";
  bool apply_layernorm_1p = false;
  bool parallel_residual = false;
  bool parallel_shared_norm = false;
  std::string linear_bias_in = "all";
  bool scale_embeddings = false;
  std::int64_t position_offset = 0;
  bool norm_bias = true;
  bool embedding_layernorm = false;
  bool masked_lm_bias = true;
  double final_logit_softcapping = 0;
  double activation_func_clamp_value = 0;
  double glu_linear_offset = 0;

  friend bool operator==(const LayerVariant&, const LayerVariant&) = default;
};

}  // namespace megatron::config
