#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"
#include "tests/parity/option_layouts.h"

namespace megatron::train {

/// Sequences that ranks share, by each way in which they may attend to all of them, in each kind of layout. Samples of
/// 24 tokens, which 2, 3 and 4 ranks cut in chunks.
inline std::vector<Layout> sequence_layouts() {
  // Gradients of more tokens are smaller: clipping stays on.
  const std::string length = "data.seq_length=24 model.max_position_embeddings=28 optimizer.clip_grad=0.2";
  std::vector<Layout> all;
  for (const char* exchange : {"allgather", "p2p", "a2a"}) {
    std::vector<Layout> some;
    some.push_back({.cp = 2});
    some.push_back({.cp = 2, .micro_batch = 2, .documents = true});
    some.push_back({.cp = 4, .micro_batch = 4});
    some.push_back({.cp = 2, .dp = 2, .micro_batch = 2, .sharded = true});
    some.push_back({.tp = 2, .cp = 2, .micro_batch = 2});
    some.push_back({.tp = 2, .cp = 2, .sp = true, .recompute = "selective"});
    some.push_back({.tp = 2, .cp = 2, .micro_batch = 4, .sp = true, .recompute = "full", .untied = true});
    some.push_back({.tp = 2, .pp = 2, .cp = 2, .sp = true, .schedule = "zb-h1", .documents = true});
    some.push_back({.pp = 2, .vpp = 2, .cp = 2, .schedule = "zb-v", .recompute = "selective"});
    some.push_back({.pp = 2, .cp = 2, .dp = 2, .sharded = true, .pooled = true});
    some.push_back({.cp = 2, .dp = 2, .gloo = true});
    some.push_back({.cp = 2, .micro_batch = 2, .llama = 2, .documents = true});
    some.push_back({.cp = 2, .dp = 2, .sharded = true, .llama = 2, .muon = true});
    if (std::string(exchange) != "a2a") {  // which divides heads
      some.push_back({.cp = 3, .dp = 2, .micro_batch = 2});
      some.push_back({.pp = 2, .cp = 4, .micro_batch = 2, .llama = 2});
      some.push_back({.cp = 2, .micro_batch = 2, .llama = 1, .documents = true});  // with a window
      some.push_back({.tp = 2, .cp = 3, .micro_batch = 2, .sp = true, .llama = 1});
      some.push_back({.tp = 4, .cp = 2, .sp = true, .recompute = "full", .llama = 2});
      some.push_back({.tp = 2, .pp = 2, .cp = 2, .dp = 2, .sp = true, .sharded = true, .llama = 2});
      some.push_back(
          {.tp = 2, .cp = 2, .recompute = "full", .llama = 1, .with = "train.distribute_saved_activations=true"});
      some.push_back({.cp = 2,
                      .micro_batch = 2,
                      .with = "model.normalization=RMSNorm model.norm_position=both model.attn_logit_softcapping=2 "
                              "model.position_embedding_type=rope model.sliding_window=5 model.window_attn_skip_freq=2 "
                              "model.rotary_base_local=100 model.qk_layernorm=true"});
    }
    for (Layout& layout : some) {
      layout.exchange = exchange;
      layout.with = length + (layout.with.empty() ? "" : " " + layout.with);
      all.push_back(layout);
    }
  }
  all.push_back({.cp = 2, .with = length, .exchange = "auto"});
  all.push_back({.cp = 2, .micro_batch = 2, .llama = 2, .experts = 4, .with = length, .exchange = "a2a"});
  all.push_back({.cp = 2, .micro_batch = 2, .sp = false, .llama = 2, .experts = 4, .with = length, .exchange = "p2p"});
  for (const int kind : {1, 2, 3, 4}) {  // mixtures of experts, whose auxiliary losses are of whole sequences
    std::vector<Layout> some;
    some.push_back({.cp = 2, .micro_batch = 2, .documents = true});
    some.push_back({.cp = 4, .micro_batch = 2, .ep = 2});
    some.push_back({.cp = 2, .dp = 2, .micro_batch = 2, .sharded = true, .ep = 4});
    some.push_back({.tp = 2, .cp = 2, .sp = true, .ep = 2});
    some.push_back({.pp = 2, .cp = 2, .dp = 2, .recompute = "full", .sharded = true, .pooled = true, .ep = 2});
    for (Layout& layout : some) {
      layout.experts = kind;
      layout.llama = 2;
      layout.with = length;
      layout.exchange = "allgather";
      all.push_back(layout);
    }
  }
  // Capacities, of whole sequences too: what is dropped is one rank's choice, by counts or by positions.
  for (const char* capacity : {"model.moe_expert_capacity_factor=0", "model.moe_expert_capacity_factor=0.5",
                               "model.moe_expert_capacity_factor=0.75 model.moe_token_drop_policy=position"}) {
    std::vector<Layout> some;
    some.push_back({.cp = 3, .micro_batch = 4, .exchange = "p2p", .documents = true});
    some.push_back({.cp = 2, .micro_batch = 2, .recompute = "full", .ep = 2, .exchange = "a2a"});
    some.push_back({.tp = 2, .cp = 2, .micro_batch = 4, .sp = true, .ep = 4, .with = " parallel.etp=1"});
    some.push_back({.pp = 2, .cp = 2, .dp = 2, .micro_batch = 2, .schedule = "zb-h1", .sharded = true, .full = true});
    for (Layout& layout : some) {
      layout.experts = 3;
      layout.llama = 2;
      layout.with = length + " " + capacity + layout.with;
      if (layout.exchange.empty()) layout.exchange = "allgather";
      all.push_back(layout);
    }
  }
  return all;
}

/// Encoders whose sequences ranks share, a BERT, a RoBERTa and a ModernBERT: padding, masked tokens that not every rank
/// has, and a first token that one rank has.
inline std::vector<Layout> encoder_sequence_layouts() {
  const std::string length = "data.seq_length=24 model.max_position_embeddings=28 optimizer.clip_grad=0.02 ";
  std::vector<Layout> all;
  const auto add = [&](const std::string& with, bool original) {
    for (const char* exchange : {"allgather", "p2p", "a2a"}) {
      std::vector<Layout> some;
      some.push_back({.cp = 2, .micro_batch = 2});
      some.push_back({.tp = 2, .cp = 2, .micro_batch = 4, .sp = true, .recompute = "full"});
      some.push_back({.pp = 2, .cp = 2, .micro_batch = 4, .schedule = "zb-h1", .recompute = "selective"});
      some.push_back({.pp = 2, .vpp = 2, .cp = 2, .micro_batch = 4, .untied = true});
      some.push_back({.cp = 2, .dp = 2, .micro_batch = 4, .sharded = true, .pooled = true});
      if (std::string(exchange) != "a2a") {  // which divides heads
        some.push_back({.cp = 3, .micro_batch = 4});
        some.push_back({.tp = 2, .pp = 2, .cp = 2, .dp = 2, .micro_batch = 2, .sp = true, .sharded = true});
        some.push_back({.tp = 2, .cp = 3, .micro_batch = 8, .sp = true});
      } else {
        some.push_back({.cp = 4, .micro_batch = 2});
        some.push_back({.cp = 2, .dp = 2, .micro_batch = 2, .sharded = true, .full = true});
      }
      for (Layout& layout : some) {
        layout.bert = true;
        layout.original = original;
        layout.exchange = exchange;
        layout.with = length + with;
        all.push_back(layout);
      }
    }
  };
  add("model.activation=gelu", false);
  add("model.activation=gelu", true);
  add(kRoberta, true);
  add(kModernBert, false);
  return all;
}

/// T5s whose sequences ranks share, of both stacks, which have lengths of their own.
inline std::vector<Layout> t5_sequence_layouts() {
  const std::string length =
      "data.seq_length=24 data.decoder_seq_length=12 model.max_position_embeddings=28 optimizer.clip_grad=0.02";
  std::vector<Layout> all;
  for (const char* exchange : {"allgather", "p2p", "a2a"}) {
    std::vector<Layout> some;
    some.push_back({.cp = 2, .micro_batch = 2});
    some.push_back({.cp = 2, .micro_batch = 4, .recompute = "full", .untied = true});
    some.push_back({.tp = 2, .cp = 2, .micro_batch = 4, .sp = true, .recompute = "selective"});
    some.push_back({.pp = 2, .cp = 2, .micro_batch = 4, .schedule = "zb-h1", .split = 1});
    some.push_back({.pp = 2, .vpp = 2, .cp = 2, .micro_batch = 4});
    some.push_back({.tp = 2, .pp = 2, .cp = 2, .micro_batch = 4, .sp = true, .stages = "Ettt|tL"});
    some.push_back({.cp = 2, .dp = 2, .micro_batch = 4, .sharded = true, .pooled = true});
    some.push_back({.cp = 2, .dp = 2, .micro_batch = 2, .sharded = true, .full = true});
    if (std::string(exchange) != "a2a") {  // which divides heads
      some.push_back({.cp = 3, .micro_batch = 4});
      some.push_back({.tp = 2, .pp = 2, .cp = 3, .micro_batch = 8, .sp = true, .split = 1});
    }
    for (Layout& layout : some) {
      layout.t5 = true;
      layout.exchange = exchange;
      layout.with = length;
      all.push_back(layout);
    }
  }
  // One length of both, and learned positions.
  all.push_back({.cp = 2,
                 .micro_batch = 4,
                 .t5 = true,
                 .with = "optimizer.clip_grad=0.02 data.decoder_seq_length=12",
                 .exchange = "a2a"});
  all.push_back({.cp = 2,
                 .micro_batch = 4,
                 .t5 = true,
                 .with = length + " model.position_embedding_type=learned_absolute",
                 .exchange = "p2p"});
  return all;
}

}  // namespace megatron::train
