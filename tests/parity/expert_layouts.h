#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Mixtures of experts in each kind of layout, the third with groups, biases and a capacity, the fourth a GPT-OSS:
/// which tokens an expert sees must not show how they are spread.
inline std::vector<Layout> expert_layouts() {
  std::vector<Layout> all;
  for (const int kind : {1, 2, 3, 4}) {
    std::vector<Layout> some;
    some.push_back({.micro_batch = 1});
    some.push_back({.dp = 2, .micro_batch = 2});
    some.push_back({.tp = 2, .micro_batch = 4});
    some.push_back({.tp = 2, .dp = 2, .sp = true});
    some.push_back({.pp = 2, .schedule = "zb-h1"});
    some.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .recompute = "full"});
    some.push_back({.tp = 2, .micro_batch = 2, .recompute = "selective"});
    some.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .recompute = "selective"});
    some.push_back({.dp = 2, .micro_batch = 2, .sharded = true});
    const std::string mlp = "train.recompute_modules=mlp";
    some.push_back({.tp = 2, .micro_batch = 2, .sp = true, .recompute = "selective", .with = mlp});
    some.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .recompute = "selective", .ep = 2, .with = mlp});
    some.push_back({.pp = 2, .dp = 2, .sharded = true, .pooled = true});
    some.push_back({.dp = 2, .ep = 2});
    some.push_back({.dp = 4, .micro_batch = 2, .ep = 2});
    some.push_back({.dp = 4, .ep = 4});
    some.push_back({.tp = 2, .dp = 2, .ep = 2});
    some.push_back({.tp = 2, .dp = 4, .sp = true, .sharded = true, .ep = 2});
    some.push_back({.dp = 4, .sharded = true, .ep = 2});
    some.push_back({.dp = 4, .sharded = true, .pooled = true, .ep = 2});
    some.push_back({.dp = 2, .micro_batch = 2, .sharded = true, .ep = 2});
    some.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .sharded = true, .ep = 2});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .recompute = "full", .sharded = true, .ep = 2});
    some.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = true, .schedule = "zb-v", .ep = 2});
    some.push_back({.pp = 2, .dp = 4, .schedule = "zb-h1", .sharded = true, .pooled = true, .ep = 4});
    some.push_back({.dp = 4, .sharded = true, .ep = 2, .muon = true});
    some.push_back({.tp = 2, .dp = 2, .gloo = true, .sharded = true, .ep = 2});
    for (Layout& layout : some) {
      layout.experts = kind;
      layout.llama = 2;
      all.push_back(layout);
    }
  }
  return all;
}

}  // namespace megatron::train
