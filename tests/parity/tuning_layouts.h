#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Those of experts, of which each has its own, where these are: with shared ones, biases, capacities and jitter; and
/// of attention alone, with experts that stay as they are.
inline std::vector<Layout> expert_adapter_layouts(const std::string& all_linear) {
  const std::string whole = " parallel.etp=1", halves = " parallel.etp=2", mlp = " train.recompute_modules=mlp",
                    attention = " lora.targets=q_proj lora.targets=o_proj lora.dora=true",
                    length = " data.seq_length=24 model.max_position_embeddings=28";
  std::vector<Layout> all;
  for (const int kind : {1, 2, 3, 4}) {
    std::vector<Layout> some;
    some.push_back({.tp = 2, .micro_batch = 4});
    some.push_back({.tp = 2, .dp = 2, .sp = true, .sharded = true, .ep = 2});
    some.push_back({.dp = 4, .sharded = true, .pooled = true, .ep = 2});
    some.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .recompute = "selective", .ep = 2, .with = mlp});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-v", .recompute = "full", .ep = 2});
    some.back().vpp = 2;
    some.push_back({.dp = 2, .sharded = true, .full = true, .ep = 2});
    some.push_back({.tp = 2, .cp = 2, .micro_batch = 2, .sp = true, .ep = 2, .with = length, .exchange = "p2p"});
    some.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .ep = 2, .with = whole});
    some.push_back({.tp = 4, .sp = true, .sharded = true, .ep = 2, .with = halves});
    some.push_back({.tp = 4, .sharded = true, .ep = 2, .with = whole});
    some.push_back({.tp = 4, .micro_batch = 2, .with = halves});
    some.push_back({.tp = 2, .dp = 2, .sp = true, .with = attention});
    some.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .ep = 2, .with = attention});
    for (Layout& layout : some) {
      layout.experts = kind;
      layout.llama = 2;
      layout.with = all_linear + layout.with;
      all.push_back(layout);
    }
  }
  Layout latents{.tp = 2, .dp = 2, .sp = true, .llama = 4, .experts = 2, .ep = 2};
  latents.with = all_linear + " model.first_k_dense_replace=1";
  latents.latents = 2;
  all.push_back(latents);
  return all;
}

/// Those of a BERT, and of a T5 and its cross attention.
inline std::vector<Layout> encoder_adapter_layouts(const std::string& all_linear) {
  const std::string dora = all_linear + " lora.dora=true";
  std::vector<Layout> all;
  for (const bool t5 : {false, true}) {
    std::vector<Layout> some;
    some.push_back({.dp = 2, .micro_batch = 2, .with = all_linear});
    some.push_back({.tp = 4, .micro_batch = 2, .with = dora});
    some.push_back({.tp = 2, .dp = 2, .sp = true, .sharded = true, .with = dora});
    some.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "selective", .with = all_linear});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .recompute = "full", .sharded = true, .with = dora});
    some.push_back({.dp = 2, .sharded = true, .full = true, .with = all_linear});
    some.push_back({.tp = 2,
                    .cp = 2,
                    .micro_batch = 2,
                    .sp = true,
                    .with = all_linear + (t5 ? "" : " data.seq_length=24 model.max_position_embeddings=28"),
                    .exchange = "p2p"});
    for (Layout& layout : some) {
      (t5 ? layout.t5 : layout.bert) = true;
      layout.untied = t5 && layout.dp == 2;
      layout.split = t5 && layout.pp == 2 ? 1 : 0;
      all.push_back(layout);
      if (!t5) all.back().original = layout.pp == 2;
    }
  }
  // The decoder begins in the middle of a stage.
  all.push_back({.pp = 2, .stages = "Ettt|tL", .t5 = true, .with = dora});
  return all;
}

/// Adapters that are trained in place of the weights: of every part of every kind of layer.
inline std::vector<Layout> lora_layouts() {
  const std::string all_linear = "lora.rank=3 lora.alpha=9 lora.dropout=0.1 optimizer.clip_grad=0.001",
                    some =
                        "lora.rank=4 lora.rslora=true lora.targets=k_proj lora.targets=v_proj lora.targets=down_proj "
                        "optimizer.clip_grad=0.001";
  std::vector<Layout> all;
  for (const std::string& with : {all_linear, some}) {
    std::vector<Layout> these;
    these.push_back({.dp = 4, .micro_batch = 2, .llama = 2});
    for (const int groups : {1, 2, 4}) {  // on four ranks: four, two or one with the same key and value
      these.push_back({.tp = 4, .micro_batch = 2, .llama = groups});
      these.push_back({.tp = 4, .sp = true, .llama = groups});
    }
    these.push_back({.tp = 2, .dp = 2, .sp = true});  // GPT-2's layers
    these.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true, .llama = 2});
    these.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true, .pooled = true});
    these.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v", .untied = true, .sharded = true, .llama = 1});
    these.push_back({.pp = 2, .vpp = 2, .dp = 2, .untied = true, .sharded = true, .pooled = true, .llama = 4});
    these.push_back({.pp = 4, .dp = 2, .stages = "E|tt|t|tL", .sharded = true, .llama = 2});  // the embedding alone
    for (const char* recompute : {"selective", "full"}) {
      these.push_back({.tp = 4, .pp = 2, .sp = true, .recompute = recompute, .llama = 2});
      these.push_back({.tp = 2, .pp = 2, .schedule = "zb-h1", .recompute = recompute});
    }
    these.push_back({.tp = 2, .pp = 2, .gloo = true, .llama = 2});
    for (Layout& layout : these) {
      layout.with = with;
      all.push_back(layout);
    }
  }
  all.push_back({.tp = 2,
                 .sp = true,
                 .recompute = "selective",
                 .llama = 2,
                 .with = all_linear + " train.recompute_modules=core_attn train.recompute_modules=mlp"});
  // With magnitudes, whose norms are of all ranks' columns of a row.
  for (const std::string& with : {all_linear + " lora.dora=true", some + " lora.dora=true"}) {
    std::vector<Layout> these;
    these.push_back({.tp = 4, .sp = true, .llama = 1});
    these.push_back({.tp = 4, .micro_batch = 2, .llama = 2});
    if (with.starts_with(all_linear)) {
      these.push_back({.dp = 4, .micro_batch = 2, .llama = 2});
      these.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true, .pooled = true});
      these.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "full", .llama = 2});
    }
    for (Layout& layout : these) {
      layout.with = with;
      all.push_back(layout);
    }
  }
  // Weights, as the adapters, of which a rank holds shards and gathers layers.
  const std::string dora = all_linear + " lora.dora=true";
  std::vector<Layout> shared;
  shared.push_back({.dp = 4, .micro_batch = 2, .llama = 2, .with = all_linear});
  shared.push_back({.dp = 2, .with = some});
  shared.push_back({.dp = 3, .global_batch = 12, .llama = 1, .with = dora});
  shared.push_back({.tp = 2, .dp = 2, .sp = true, .recompute = "full", .llama = 2, .with = dora});
  shared.push_back({.dp = 2, .recompute = "selective", .untied = true, .with = all_linear});
  shared.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .llama = 2, .with = dora});
  shared.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = true, .schedule = "zb-v", .with = all_linear});
  shared.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "interleaved", .recompute = "full", .with = some});
  shared.push_back({.pp = 4, .dp = 2, .stages = "E|tt|t|tL", .llama = 2, .with = all_linear});
  shared.push_back({.cp = 2, .dp = 2, .llama = 2, .with = all_linear, .exchange = "p2p"});
  shared.push_back({.dp = 2, .gloo = true, .llama = 2, .with = dora});
  shared.push_back({.dp = 4, .with = all_linear + " optimizer.overlap_param_gather=false"});
  for (Layout& layout : shared) {
    layout.sharded = layout.full = true;
    all.push_back(layout);
  }
  // Of latents, which every rank makes whole.
  for (const int kind : {1, 2}) {
    std::vector<Layout> these;
    these.push_back({.dp = 2, .micro_batch = 2, .with = all_linear});
    these.push_back({.tp = 4, .micro_batch = 2, .with = dora});
    these.push_back({.tp = 2, .dp = 2, .sp = true, .sharded = true, .with = dora});
    these.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "selective", .with = all_linear});
    these.push_back({.tp = 2, .pp = 2, .vpp = 2, .sp = true, .schedule = "zb-v", .recompute = "full", .with = dora});
    these.push_back({.tp = 2,
                     .dp = 2,
                     .sp = true,
                     .sharded = true,
                     .full = true,
                     .with = all_linear + " lora.targets=kv_a_proj_with_mqa lora.targets=kv_b_proj lora.rslora=true"});
    these.push_back({.tp = 2,
                     .cp = 2,
                     .micro_batch = 2,
                     .sp = true,
                     .with = all_linear + " data.seq_length=24 model.max_position_embeddings=28",
                     .exchange = "p2p"});
    for (Layout& layout : these) {
      layout.latents = kind;
      layout.llama = 4;
      all.push_back(layout);
    }
  }
  const std::string gated = " model.attention_output_gate=true",
                    gates = " lora.targets=q_gate_proj lora.targets=k_proj";
  all.push_back({.tp = 4, .micro_batch = 2, .llama = 2, .with = all_linear + gated});
  all.push_back(
      {.tp = 2, .dp = 2, .sp = true, .sharded = true, .with = all_linear + gates + gated + " lora.dora=true"});
  for (const Layout& layout : expert_adapter_layouts(all_linear)) all.push_back(layout);
  for (const Layout& layout : encoder_adapter_layouts(all_linear)) all.push_back(layout);
  // Of ranks that share sequences, each of which drops what its tokens are.
  const std::string length = " data.seq_length=24 model.max_position_embeddings=28";
  for (const char* exchange : {"allgather", "p2p", "a2a"}) {
    std::vector<Layout> these;
    these.push_back({.cp = 2, .micro_batch = 2, .llama = 2, .with = all_linear});
    these.push_back({.tp = 2, .cp = 2, .sp = true, .recompute = "full", .llama = 4, .with = some});
    these.push_back({.tp = 2, .cp = 2, .dp = 2, .sp = true, .sharded = true, .with = all_linear + " lora.dora=true"});
    these.push_back({.pp = 2, .cp = 2, .schedule = "zb-h1", .llama = 2, .with = all_linear, .documents = true});
    if (std::string(exchange) != "a2a") {  // which divides heads
      these.push_back({.cp = 4, .micro_batch = 4, .llama = 1, .with = all_linear + " lora.dora=true"});
      these.push_back({.tp = 2, .cp = 3, .micro_batch = 2, .sp = true, .llama = 2, .with = all_linear});
    }
    for (Layout& layout : these) {
      layout.exchange = exchange;
      layout.with += length;
      all.push_back(layout);
    }
  }
  return all;
}

/// Preferences: log-probabilities of whole answers, whose tokens ranks may share. With dropout, of the weights and of
/// adapters.
inline std::vector<Layout> preference_layouts() {
  const std::string beta =
      "dpo.beta=0.3 dpo.label_smoothing=0.1 data.seq_length=24 model.max_position_embeddings=28 "
      "optimizer.clip_grad=0.001";
  std::vector<Layout> all;
  for (const std::string& with : {beta, beta + " lora.rank=3 lora.dropout=0.1"}) {
    std::vector<Layout> these;
    these.push_back({.dp = 2, .micro_batch = 2});
    these.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .schedule = "zb-h1", .llama = 2});
    these.push_back({.dp = 2, .micro_batch = 2, .sharded = true, .pooled = true, .llama = 2});
    for (const char* exchange : {"allgather", "p2p", "a2a"}) {
      these.push_back({.cp = 2, .micro_batch = 4, .llama = 2, .exchange = exchange});
      these.push_back({.tp = 2, .cp = 2, .micro_batch = 2, .sp = true, .recompute = "full", .exchange = exchange});
    }
    these.push_back({.cp = 4, .micro_batch = 2, .llama = 1, .exchange = "p2p"});
    these.push_back({.pp = 2, .cp = 2, .dp = 2, .micro_batch = 2, .sharded = true, .llama = 2, .exchange = "p2p"});
    these.push_back({.pp = 2, .vpp = 2, .cp = 2, .micro_batch = 2, .schedule = "zb-v", .exchange = "allgather"});
    for (Layout& layout : these) {
      layout.preferences = true;
      layout.with = with;
      all.push_back(layout);
    }
  }
  for (int kind = 1; kind <= 2; ++kind) {  // routers' losses are means over pairs too
    std::vector<Layout> these;
    these.push_back({.dp = 2, .micro_batch = 2, .ep = 2});
    these.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .schedule = "zb-h1"});
    these.push_back({.pp = 2, .cp = 2, .dp = 2, .micro_batch = 2, .sharded = true, .ep = 2, .exchange = "p2p"});
    for (Layout& layout : these) {
      layout.preferences = true;
      layout.with = beta;
      layout.experts = kind;
      layout.llama = 2;
      all.push_back(layout);
    }
  }
  return all;
}

}  // namespace megatron::train
