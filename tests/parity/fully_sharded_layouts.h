#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// ZeRO stage 3 with each kind of layout, of model and of optimizer: parameters that are gathered a layer ahead must be
/// those of the last update, in every pass.
inline std::vector<Layout> fully_sharded_layouts() {
  std::vector<Layout> all;
  for (const int dp : {2, 4}) all.push_back({.dp = dp, .micro_batch = 2});
  const std::string clip = "optimizer.clip_grad=0.3";  // on for 30 steps of larger batches too
  all.push_back({.dp = 3, .global_batch = 12, .with = clip});
  all.push_back({.tp = 2, .dp = 2});
  all.push_back({.tp = 2, .dp = 3, .sp = true, .global_batch = 12, .with = clip});
  all.push_back({.dp = 2, .untied = true});
  all.push_back({.dp = 4, .micro_batch = 1, .with = "optimizer.overlap_param_gather=false"});
  all.push_back({.dp = 2, .with = "optimizer.overlap_grad_reduce=false"});
  // What is computed again reads its layers once more, in groups of some.
  for (const int group : {1, 2, 3})
    all.push_back({.dp = 2, .recompute = "full", .with = "train.recompute_num_layers=" + std::to_string(group)});
  all.push_back({.dp = 2, .recompute = "full", .with = "train.recompute_method=block train.recompute_num_layers=2"});
  all.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true, .recompute = "selective"});
  all.push_back(
      {.dp = 2, .recompute = "selective", .with = "train.recompute_modules=core_attn train.recompute_modules=mlp"});
  for (const char* recompute : {"none", "full"}) {
    all.push_back({.pp = 2, .dp = 2, .schedule = "gpipe", .recompute = recompute});
    all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .recompute = recompute});
    for (const schedule::ScheduleInfo& info : schedule::schedules())
      if (info.v_shaped) all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = info.name, .recompute = recompute});
  }
  all.push_back({.pp = 2, .dp = 2});
  all.push_back({.pp = 2, .dp = 3, .schedule = "zb-h1", .global_batch = 12, .with = clip});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "interleaved", .untied = true});
  all.push_back({.pp = 4, .dp = 2, .stages = "E|tt|t|tL"});
  all.push_back(
      {.tp = 2, .pp = 4, .dp = 2, .sp = true, .recompute = "full", .with = "train.recompute_partial_microbatches=1"});
  all.push_back({.tp = 4, .dp = 2, .sp = true, .llama = 2});
  all.push_back({.tp = 4, .pp = 2, .dp = 2, .untied = true, .llama = 1});
  all.push_back({.dp = 2, .with = "model.parallel_residual=true model.position_embedding_type=rope"});
  all.push_back({.dp = 2,
                 .with = "model.normalization=RMSNorm model.norm_position=both model.apply_layernorm_1p=true "
                         "model.position_embedding_type=rope model.qk_layernorm=true"});
  all.push_back({.dp = 2, .llama = 1, .with = "model.softmax_type=off-by-one"});
  all.push_back({.pp = 2, .dp = 2, .recompute = "full", .with = "train.recompute_layers=1,3"});
  all.push_back({.cp = 2, .dp = 2, .exchange = "p2p"});
  all.push_back({.pp = 2, .cp = 2, .dp = 2, .llama = 2, .exchange = "allgather"});
  all.push_back({.dp = 4, .muon = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .llama = 2, .muon = true});
  all.push_back({.dp = 2, .micro_batch = 2, .gloo = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .gloo = true});
  all.push_back({.dp = 2, .bert = true});
  all.push_back({.dp = 4, .bert = true, .original = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .bert = true});
  all.push_back({.dp = 2, .t5 = true});
  all.push_back({.dp = 2, .recompute = "full", .untied = true, .t5 = true});
  all.push_back({.pp = 2, .dp = 2, .t5 = true, .split = 1});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .t5 = true});
  for (const int kind : {1, 2, 3, 4}) {
    std::vector<Layout> some;
    some.push_back({.dp = 2, .micro_batch = 2});
    some.push_back({.dp = 2, .ep = 2});  // each rank owns its experts whole
    some.push_back({.dp = 4, .ep = 2});
    some.push_back({.pp = 2, .dp = 4, .schedule = "zb-h1", .ep = 2});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .recompute = "full", .ep = 2});
    const std::string whole = "parallel.etp=1";
    if (kind == 3) some.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true, .ep = 2, .with = whole});
    if (kind == 2) some.push_back({.tp = 2, .micro_batch = 2, .sp = true, .with = whole});  // all else is not shared
    for (Layout& layout : some) {
      layout.experts = kind;
      layout.llama = 2;
      all.push_back(layout);
    }
  }
  for (Layout& layout : all) layout.sharded = layout.full = true;
  return all;
}

}  // namespace megatron::train
