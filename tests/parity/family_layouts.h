#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Families of dense models by what their layers have (models/gpt/families/), small.
struct DenseFamily {
  const char* name;
  int groups;  ///< key and value heads
  std::string options;
};
inline std::vector<DenseFamily> dense_families() {
  const std::string llama =
      "model.normalization=RMSNorm model.activation=silu model.gated_linear_unit=true model.add_bias_linear=false "
      "model.position_embedding_type=rope ";
  const std::string gemma =
      "model.normalization=RMSNorm model.activation=gelu_tanh model.gated_linear_unit=true "
      "model.add_bias_linear=false model.position_embedding_type=rope model.apply_layernorm_1p=true "
      "model.scale_embeddings=true model.kv_channels=12 ";
  const std::string longrope =
      "model.rope_scaling_factor=4 model.rope_scaling_type=longrope model.rope_original_positions=6 ";
  const std::string untied = "model.untie_embeddings_and_output_weights=true ";
  const std::string window = "model.sliding_window=5 ";
  const std::string neox = "model.parallel_residual=true model.activation=gelu model.position_embedding_type=rope ";
  return {
      {"llama3", 2, llama + untied + "model.rope_scaling_factor=8 model.rope_original_positions=4"},
      {"llama_biases", 2, llama + "model.add_bias_linear=true"},
      {"qwen2", 2, llama + "model.add_qkv_bias=true"},
      {"qwen3", 2, llama + "model.qk_layernorm=true model.kv_channels=12"},
      {"mistral", 2, llama + untied + window},
      {"smollm3", 2, llama + "model.no_rope_freq=4"},
      {"gemma", 1, gemma},
      {"gemma2", 2,
       gemma + window +
           "model.norm_position=both model.window_attn_skip_freq=2 model.attn_logit_softcapping=2 "
           "model.final_logit_softcapping=1 model.query_pre_attn_scalar=5"},
      {"gemma3", 1,
       gemma + window +
           "model.norm_position=both model.window_attn_skip_freq=3 model.rotary_base_local=100 "
           "model.qk_layernorm=true"},
      {"olmo2", 4, llama + untied + "model.norm_position=behind model.qk_layernorm=true model.qk_layernorm_full=true"},
      {"olmo3", 2,
       llama + untied + window +
           "model.window_attn_skip_freq=4 model.norm_position=behind model.qk_layernorm=true "
           "model.qk_layernorm_full=true"},
      {"phi3", 4,
       llama + untied + window + longrope + "model.longrope_long_factor=1,3,5,9 model.longrope_short_factor=1,1,1,1"},
      {"phi4", 2,
       llama + longrope +
           "model.rotary_percent=0.75 model.longrope_long_factor=1,3,5 model.longrope_short_factor=1,1,1"},
      {"neox", 4, neox + untied + "model.rotary_percent=0.25"},
      {"falcon", 1, neox + "model.parallel_shared_norm=true model.add_bias_linear=false"},
      {"starcoder2", 2, window + "model.activation=gelu_tanh model.position_embedding_type=rope"},
  };
}

/// Each family in each kind of layout: tp, sp, cp by each exchange, pp, vpp, dp and the stages of ZeRO, and what they
/// are together. All of a family are compared with one run of one rank. Layouts are outside, so that a part of the
/// tests, which has every n-th, asks few families of it.
inline std::vector<Layout> family_layouts() {
  std::vector<Layout> some;
  some.push_back({.dp = 4, .micro_batch = 2});
  some.push_back({.tp = 2, .micro_batch = 4});
  some.push_back({.tp = 4, .micro_batch = 4, .sp = true, .recompute = "full"});
  some.push_back({.tp = 2, .dp = 2, .micro_batch = 4, .sp = true, .sharded = true});
  some.push_back({.pp = 2, .micro_batch = 2});
  some.push_back({.pp = 4, .micro_batch = 2, .sharded = true});
  some.push_back({.pp = 2, .vpp = 2, .dp = 2, .micro_batch = 2});
  some.push_back({.pp = 2, .vpp = 2, .micro_batch = 4, .schedule = "zb-v", .recompute = "selective"});
  some.push_back({.tp = 2, .pp = 2, .micro_batch = 4, .sp = true, .schedule = "zb-h1"});
  some.push_back({.cp = 2, .micro_batch = 4, .exchange = "p2p"});
  some.push_back({.cp = 3, .micro_batch = 4, .exchange = "allgather"});
  some.push_back({.tp = 2, .cp = 2, .micro_batch = 4, .sp = true, .sharded = true, .exchange = "p2p"});
  some.push_back({.pp = 2, .cp = 2, .micro_batch = 4, .schedule = "zb-h1", .exchange = "a2a"});
  some.push_back({.dp = 2, .micro_batch = 2, .sharded = true, .pooled = true});
  some.push_back({.tp = 2, .pp = 2, .dp = 2, .micro_batch = 2, .sp = true, .sharded = true, .pooled = true});
  some.push_back({.dp = 2, .micro_batch = 2, .sharded = true, .full = true});
  some.push_back({.pp = 2, .vpp = 2, .dp = 2, .micro_batch = 2, .recompute = "full", .sharded = true, .full = true});
  some.push_back({.cp = 2, .dp = 2, .micro_batch = 4, .sharded = true, .full = true, .exchange = "allgather"});
  std::vector<Layout> all;
  for (const Layout& layout : some)
    for (const DenseFamily& family : dense_families()) {
      Layout of_family = layout;
      if (layout.exchange == "a2a" && family.groups % layout.cp != 0) of_family.exchange = "p2p";  // it divides heads
      of_family.family = family.name;
      of_family.with =
          family.options + " model.num_query_groups=" + std::to_string(family.groups) + " optimizer.clip_grad=0.05";
      all.push_back(of_family);
    }
  return all;
}

}  // namespace megatron::train
