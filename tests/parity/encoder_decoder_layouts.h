#pragma once
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// A T5 in each kind of layout, cut between encoder and decoder or elsewhere.
inline std::vector<Layout> t5_layouts() {
  std::vector<Layout> all;
  all.push_back({.dp = 4});
  all.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .untied = true});
  all.push_back({.tp = 4, .sp = true});
  all.push_back({.tp = 4, .micro_batch = 8, .sp = true, .recompute = "full"});
  all.push_back({.tp = 2, .recompute = "selective"});
  all.push_back({.pp = 2, .schedule = "gpipe", .split = 1});
  all.push_back({.pp = 4, .micro_batch = 2, .schedule = "1f1b", .communication = "batched", .split = 2});
  all.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "selective", .split = 1});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .split = 1});
  all.push_back({.tp = 2, .pp = 3, .split = 1});
  all.push_back({.pp = 3, .recompute = "full", .untied = true, .split = 2});
  all.push_back({.pp = 2, .stages = "Ettt|tL"});  // the decoder begins in the middle of a stage
  all.push_back({.pp = 4, .stages = "E|t|ttt|L"});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2});
  all.push_back({.tp = 2, .pp = 2, .vpp = 2, .sp = true, .schedule = "zb-v", .untied = true});
  all.push_back({.dp = 3, .sharded = true, .global_batch = 12});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .sharded = true, .pooled = true, .split = 1});
  all.push_back({.pp = 4, .dp = 2, .schedule = "zb-h1", .sharded = true, .pooled = true, .split = 2});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .untied = true, .sharded = true});
  // Backward reaches the words of the decoder within a stage, or at its end while what lies behind is being reduced.
  all.push_back({.pp = 3, .dp = 2, .stages = "Ett|ttt|tL", .layers = 3, .sharded = true, .pooled = true});
  all.push_back({.pp = 2, .dp = 2, .stages = "Et|tttL", .untied = true, .sharded = true, .pooled = true});
  all.push_back({.pp = 2, .dp = 2, .untied = true, .sharded = true, .pooled = true, .split = 1});
  all.push_back({.pp = 3, .dp = 2, .stages = "Ett|ttt|tL", .layers = 3, .sharded = true, .full = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .gloo = true, .split = 1});
  for (Layout& layout : all) layout.t5 = true;
  return all;
}

}  // namespace megatron::train
