#pragma once
#include <string>
#include <utility>
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
    const std::string drawn = "model.moe_router_force_load_balancing=true";
    some.push_back({.tp = 2, .dp = 2, .sp = true, .ep = 2, .with = drawn});
    some.push_back({.tp = 4, .sp = true, .recompute = "full", .ep = 2, .with = drawn + " parallel.etp=1"});
    some.push_back({.pp = 2, .dp = 2, .schedule = "zb-h1", .sharded = true, .full = true, .with = drawn});
    some.push_back({.cp = 2, .micro_batch = 2, .with = drawn, .exchange = "p2p"});
    for (Layout& layout : some) {
      layout.experts = kind;
      layout.llama = 2;
      all.push_back(layout);
    }
  }
  return all;
}

/// The same with experts that are split over another number of ranks than the rest.
inline std::vector<Layout> expert_slice_layouts() {
  const std::string whole = "parallel.etp=1", halves = "parallel.etp=2", quarters = "parallel.etp=4";
  std::vector<Layout> all;
  const auto add = [&](int kind, Layout layout) {
    layout.experts = kind;
    layout.llama = 2;
    layout.micro_batch = 2;
    all.push_back(std::move(layout));
  };
  add(1, {.tp = 2, .sp = true, .ep = 2, .with = whole});
  add(1, {.dp = 4, .sharded = true, .ep = 2, .with = halves});
  add(1, {.tp = 2, .dp = 2, .sp = true, .sharded = true, .ep = 2, .muon = true, .with = whole});
  add(2, {.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .ep = 2, .with = whole});
  add(2, {.tp = 4, .sp = true, .ep = 2, .with = halves});
  const std::string mlp = " train.recompute_modules=mlp";
  add(2, {.tp = 2, .sp = true, .recompute = "selective", .ep = 2, .with = whole + mlp});
  add(3, {.tp = 2, .dp = 2, .sp = true, .recompute = "full", .sharded = true, .ep = 4, .with = whole});
  add(3, {.tp = 2, .dp = 2, .sp = true, .sharded = true, .pooled = true, .ep = 2, .with = whole});
  // Each expert takes one token of a sequence, mostly of its first: ranks of tp may have nothing to send.
  const std::string few = " model.moe_expert_capacity_factor=0.2 model.moe_token_drop_policy=position";
  add(3, {.tp = 4, .sp = true, .with = whole + few});
  add(4, {.tp = 2, .cp = 2, .sp = true, .ep = 4, .with = whole});
  // Without sequence parallelism each rank of tp has all tokens: of experts on these ranks, in one copy or several, and
  // on those of other samples too.
  add(2, {.tp = 2, .ep = 2, .with = whole});
  add(3, {.tp = 4, .pp = 2, .schedule = "zb-h1", .ep = 2, .with = whole});
  add(4, {.tp = 4, .sharded = true, .with = halves});
  add(3, {.tp = 2, .dp = 2, .recompute = "full", .sharded = true, .ep = 4, .with = whole + few});
  add(4, {.tp = 2, .dp = 2, .sp = true, .with = quarters});
  return all;
}

}  // namespace megatron::train
