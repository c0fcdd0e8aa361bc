#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// An optimizer that makes whole matrices of what ranks have slices and shards of.
inline std::vector<Layout> muon_layouts() {
  std::vector<Layout> all;
  for (const bool sharded : {false, true}) {
    all.push_back({.dp = 2, .micro_batch = 2, .sharded = sharded, .muon = true});
    all.push_back({.tp = 2, .dp = 2, .sp = true, .sharded = sharded, .muon = true});
    all.push_back({.tp = 4, .pp = 2, .dp = 2, .schedule = "zb-h1", .sharded = sharded, .llama = 2, .muon = true});
    all.push_back({.tp = 2, .pp = 2, .dp = 2, .sharded = sharded, .t5 = true, .muon = true});
  }
  all.push_back({.dp = 4, .sharded = true, .pooled = true, .muon = true});
  all.push_back({.dp = 2,
                 .sharded = true,
                 .pooled = true,
                 .muon = true,
                 .with = "optimizer.overlap_grad_reduce=false"});  // one depth of gradients at a time
  all.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sharded = true, .llama = 1, .muon = true});
  all.push_back({.tp = 2, .dp = 2, .gloo = true, .sharded = true, .muon = true});
  return all;
}

/// Options that must not show how the ranks are spread, each in layouts that could.
inline std::vector<Layout> option_layouts() {
  std::vector<Layout> all;
  for (const char* with :
       {"schedule.decoupled_lr=0.01 schedule.decoupled_min_lr=0.002", "optimizer.clip_norm=3 optimizer.clip_grad=0.02",
        "model.use_mup=true model.mup_base_hidden_size=8 model.mup_embedding_mult=3 "
        "model.mup_base_head_dim=4 optimizer.clip_grad=0.02",
        "model.init_method_xavier_uniform=true model.embedding_init_method_std=0.5 "
        "model.untie_embeddings_and_output_weights=true schedule.weight_decay_incr_style=cosine "
        "schedule.start_weight_decay=0.1 schedule.end_weight_decay=2",
        // Gemma 2 and 3, OLMo 3, GPT-NeoX and SmolLM3: what their layers have.
        "model.normalization=RMSNorm model.norm_position=both model.apply_layernorm_1p=true "
        "model.scale_embeddings=true model.attn_logit_softcapping=2 model.final_logit_softcapping=1 "
        "model.query_pre_attn_scalar=5 model.position_embedding_type=rope model.sliding_window=5 "
        "model.window_attn_skip_freq=2 model.rotary_base_local=100 model.qk_layernorm=true",
        "model.normalization=RMSNorm model.norm_position=behind model.qk_layernorm=true model.qk_layernorm_full=true "
        "model.num_query_groups=2 model.position_embedding_type=rope model.sliding_window=5 "
        "model.window_attn_skip_freq=3",
        "model.softmax_type=learnable model.gated_linear_unit=true model.activation=quick_gelu "
        "model.activation_func_clamp_value=0.01 model.glu_linear_offset=1 model.num_query_groups=2 "
        "model.position_embedding_type=rope model.sliding_window=5 model.window_attn_skip_freq=2",
        "model.qk_l2_norm=true model.num_query_groups=2 model.position_embedding_type=rope model.rotary_percent=0.5",
        "model.attention_output_gate=true model.num_query_groups=2 model.position_embedding_type=rope "
        "model.add_bias_linear=false model.add_qkv_bias=true",
        "model.parallel_residual=true model.parallel_shared_norm=true model.add_bias_linear=false "
        "model.num_query_groups=1 model.position_embedding_type=rope",
        "model.parallel_residual=true model.parallel_shared_norm=true model.num_query_groups=2 "
        "model.position_embedding_type=rope model.rope_scaling_factor=4 model.rope_scaling_type=longrope "
        "model.rope_original_positions=6 model.longrope_long_factor=1,3,5,9 "
        "model.longrope_short_factor=1,1,1,1",
        "model.parallel_residual=true model.position_embedding_type=rope model.rotary_percent=0.5 "
        "model.no_rope_freq=2 model.add_bias_linear=true model.linear_bias_in=mlp"}) {
    std::vector<Layout> some;
    some.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true});
    some.push_back({.pp = 2, .vpp = 2, .dp = 2, .untied = true, .sharded = true, .pooled = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sharded = true, .bert = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sharded = true, .pooled = true, .t5 = true, .split = 1});
    some.push_back({.tp = 4, .pp = 2, .dp = 2, .sharded = true, .llama = 2, .muon = true});
    if (std::string(with).starts_with("model.") && !std::string(with).starts_with("model.use_mup"))
      some.push_back({.tp = 4, .sp = true, .recompute = "full"});
    if (std::string(with).starts_with("model."))
      std::erase_if(some, [](const Layout& layout) { return layout.bert || layout.t5; });
    for (Layout& layout : some) {
      layout.with = with;
      all.push_back(layout);
    }
  }
  const std::string gated = "model.attention_output_gate=true data.seq_length=24 model.max_position_embeddings=28";
  for (const char* exchange : {"allgather", "p2p", "a2a"})
    all.push_back({.tp = 2, .cp = 2, .micro_batch = 2, .sp = true, .llama = 4, .with = gated, .exchange = exchange});
  all.push_back({.tp = 2, .pp = 2, .schedule = "zb-h1", .recompute = "selective", .llama = 2, .with = gated});
  all.push_back({.tp = 2, .dp = 2, .sharded = true, .full = true, .llama = 1, .with = gated});
  return all;
}

/// Models of bf16 whose stream is float32, in layouts where messages, parts of sequences and what is computed again
/// have its type.
inline std::vector<Layout> wide_stream_layouts() {
  std::vector<Layout> all;
  all.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .schedule = "zb-h1", .sharded = true, .llama = 2});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .recompute = "full", .sharded = true, .pooled = true});
  all.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .bert = true});
  all.push_back({.pp = 2, .cp = 2, .sharded = true, .full = true, .llama = 1, .exchange = "p2p"});
  for (Layout& layout : all) layout.with = "model.fp32_residual_connection=true";
  return all;
}

/// A RoBERTa and a ModernBERT, as options.
inline const char kRoberta[] =
    "model.bert_binary_head=false model.num_tokentypes=1 model.position_offset=2 model.activation=gelu";
inline const char kModernBert[] =
    "model.bert_binary_head=false model.num_tokentypes=0 model.activation=gelu model.gated_linear_unit=true "
    "model.add_bias_linear=false model.masked_lm_bias=false model.norm_bias=false model.embedding_layernorm=true "
    "model.position_embedding_type=rope model.sliding_window=3 model.window_attn_skip_freq=3 "
    "model.window_attn_skip_first=true model.rotary_base_local=100";

/// Encoders: a RoBERTa, whose positions begin at another row of their embedding, and a ModernBERT, with windows on both
/// sides in most layers and another base of positions there, normalized embeddings, and norms without bias.
inline std::vector<Layout> encoder_layouts() {
  std::vector<Layout> all;
  const auto add = [&](const std::string& with, bool original) {
    std::vector<Layout> some;
    some.push_back({.dp = 4, .micro_batch = 2});
    some.push_back({.tp = 4, .micro_batch = 4});
    some.push_back({.tp = 2, .dp = 2, .sp = true});
    some.push_back({.tp = 4, .micro_batch = 8, .sp = true, .recompute = "full"});
    some.push_back({.pp = 4, .stages = "E|tt|t|tL"});
    some.push_back({.pp = 2, .vpp = 2, .dp = 2, .untied = true});
    some.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "selective"});
    some.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v"});
    some.push_back({.dp = 3, .sharded = true, .global_batch = 12});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .sharded = true, .pooled = true});
    some.push_back({.tp = 2, .dp = 2, .sharded = true, .full = true});
    for (Layout& layout : some) {
      layout.bert = true;
      layout.original = original;
      layout.with = with;
      all.push_back(layout);
    }
  };
  const std::string clip = "optimizer.clip_grad=0.02 ";
  add(clip + kRoberta, true);
  add(clip + kModernBert, false);
  return all;
}

}  // namespace megatron::train
