#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// DeepSeek's layers in each kind of layout: latent attention, with an MLP or with experts behind one layer without.
inline std::vector<Layout> latent_layouts() {
  std::vector<Layout> all;
  const std::string length = "data.seq_length=24 model.max_position_embeddings=28 optimizer.clip_grad=0.2";
  for (const int kind : {1, 2}) {
    std::vector<Layout> some;
    some.push_back({.dp = 2, .micro_batch = 2});
    some.push_back({.tp = 2, .micro_batch = 4});
    some.push_back({.tp = 4, .dp = 2, .sp = true});
    some.push_back({.pp = 4, .micro_batch = 2, .schedule = "zb-h1"});
    some.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "selective"});
    some.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .recompute = "full", .untied = true});
    some.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = true});
    some.push_back({.tp = 2, .micro_batch = 2, .sp = true, .recompute = "full"});
    some.push_back({.tp = 2, .dp = 2, .sp = true, .sharded = true});
    some.push_back({.pp = 2, .dp = 2, .sharded = true, .pooled = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true, .full = true});
    some.push_back({.dp = 4, .sharded = true, .muon = true});
    some.push_back({.tp = 2, .dp = 2, .gloo = true});
    if (kind == 2)  // what latents are made of is dropped, and gathered again
      some.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .with = "model.embedding_layernorm=true"});
    for (const char* exchange : {"allgather", "p2p", "a2a"})
      some.push_back({.tp = 2, .cp = 2, .micro_batch = 2, .sp = true, .with = length, .exchange = exchange});
    some.push_back({.cp = 2, .micro_batch = 2, .with = length, .exchange = "p2p", .documents = true});
    // Experts, in all layers but the first.
    const std::string first = "model.first_k_dense_replace=1";
    some.push_back({.tp = 2, .dp = 2, .sp = true, .experts = 3, .ep = 2, .with = first});
    some.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .sharded = true, .experts = 2, .ep = 2, .with = first});
    some.push_back({.pp = 2, .vpp = 2, .stages = "balanced", .layers = 5, .experts = 1, .with = first});
    for (Layout& layout : some) {
      layout.latents = kind;
      layout.llama = 4;
      all.push_back(layout);
    }
  }
  return all;
}

}  // namespace megatron::train
