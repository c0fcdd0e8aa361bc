#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Depths of multi-token prediction in each kind of layout: they are on the last stage, which shares the embedding with
/// the first.
inline std::vector<Layout> multi_token_layouts() {
  std::vector<Layout> all;
  const std::string two = "model.mtp_num_layers=2", one = "model.mtp_num_layers=1";
  const std::string strong = " model.mtp_loss_scaling_factor=0.7";
  all.push_back({.micro_batch = 1, .with = two});
  all.push_back({.dp = 2, .micro_batch = 2, .with = two});
  all.push_back({.tp = 2, .micro_batch = 4, .with = two});
  all.push_back({.tp = 4, .micro_batch = 2, .sp = true, .with = two + strong});
  all.push_back({.tp = 2, .dp = 2, .sp = true, .untied = true, .with = two});
  all.push_back({.pp = 2, .with = two});
  all.push_back({.pp = 4, .schedule = "1f1b", .untied = true, .with = two});
  all.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .with = two});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .with = two});
  all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .with = two});  // both ends on one rank
  all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .untied = true, .with = one});
  all.push_back({.pp = 4, .stages = "E|tt|tt|L", .with = two});  // the output alone
  for (const char* recompute : {"selective", "full"}) {
    all.push_back({.tp = 2, .pp = 2, .sp = true, .recompute = recompute, .with = two});
    all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .recompute = recompute, .with = one});
  }
  all.push_back(
      {.tp = 2, .micro_batch = 2, .recompute = "full", .with = two + " train.distribute_saved_activations=true"});
  all.push_back(
      {.tp = 2, .pp = 4, .sp = true, .recompute = "full", .with = two + " train.recompute_partial_microbatches=1"});
  all.push_back({.dp = 2, .micro_batch = 2, .with = two, .documents = true});
  all.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .with = two + strong, .documents = true});
  all.push_back({.tp = 2, .pp = 2, .gloo = true, .with = two});
  for (const bool untied : {false, true}) {
    for (const int zero : {1, 2, 3}) {
      std::vector<Layout> some;
      some.push_back({.dp = 2, .with = two});
      some.push_back({.pp = 2, .dp = 2, .with = two});
      some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .recompute = "full", .with = one});
      some.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v", .with = two});
      for (Layout& layout : some) {
        layout.sharded = true;
        layout.pooled = zero == 2;
        layout.full = zero == 3;
        layout.untied = untied;
        all.push_back(layout);
      }
    }
  }
  all.push_back({.tp = 2, .dp = 2, .sharded = true, .muon = true, .with = two});
  for (Layout& layout : all) layout.llama = 2;
  // GPT-2's layers: the learned positions are on both ends of the pipeline, as the words are.
  all.push_back({.micro_batch = 2, .with = two, .documents = true});
  all.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .with = two});
  all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .recompute = "full", .with = one});
  all.push_back({.pp = 4, .stages = "E|tt|tt|L", .untied = true, .with = two, .documents = true});
  for (const int zero : {1, 2, 3})
    all.push_back({.tp = 2,
                   .pp = 2,
                   .dp = 2,
                   .sp = true,
                   .untied = zero == 1,
                   .sharded = true,
                   .pooled = zero == 2,
                   .full = zero == 3,
                   .with = two});
  all.push_back({.tp = 2, .pp = 2, .with = two + " model.apply_residual_connection_post_layernorm=true"});
  all.push_back({.tp = 2, .pp = 2, .sp = true, .with = two + " model.embedding_layernorm=true"});
  // Ranks that share sequences have of each what its other ranks' tokens say ahead.
  const std::string length = " data.seq_length=24 model.max_position_embeddings=28 optimizer.clip_grad=0.2";
  for (const char* exchange : {"allgather", "p2p", "a2a"}) {
    all.push_back({.cp = 2, .micro_batch = 2, .with = two + length, .exchange = exchange, .documents = true});
    all.push_back(
        {.tp = 2, .pp = 2, .cp = 2, .sp = true, .recompute = "full", .with = two + length, .exchange = exchange});
  }
  all.push_back(
      {.cp = 2, .dp = 2, .micro_batch = 2, .sharded = true, .llama = 2, .experts = 2, .ep = 4, .with = two + length});
  for (const int kind : {1, 2, 3, 4}) {
    std::vector<Layout> some;
    some.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .with = two});
    some.push_back({.pp = 2, .dp = 2, .recompute = "full", .sharded = true, .pooled = true, .ep = 2, .with = one});
    for (Layout& layout : some) {
      layout.llama = 2;
      layout.experts = kind;
      all.push_back(layout);
    }
  }
  {  // of DeepSeek's layers, at last of a V3
    std::vector<Layout> some;
    some.push_back({.tp = 2, .pp = 2, .sp = true, .recompute = "full", .with = two});
    some.push_back({.tp = 2, .dp = 2, .sp = true, .sharded = true, .full = true, .with = two});
    some.push_back({.pp = 2, .dp = 2, .sharded = true, .pooled = true, .with = one + " model.first_k_dense_replace=1"});
    some.back().experts = 3;
    some.back().ep = 2;
    for (Layout& layout : some) {
      layout.llama = 4;
      layout.latents = 2;
      all.push_back(layout);
    }
  }
  for (const char* kind : {"model.normalization=RMSNorm model.norm_position=both model.apply_layernorm_1p=true",
                           "model.norm_position=behind", "model.parallel_residual=true", "model.use_mup=true"})
    all.push_back({.tp = 2,
                   .pp = 2,
                   .sp = true,
                   .with = two + " model.add_bias_linear=false model.position_embedding_type=rope " + kind});
  return all;
}

}  // namespace megatron::train
