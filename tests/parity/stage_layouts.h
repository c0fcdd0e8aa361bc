#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Stages of unequal numbers of layers, which the layout names, options imply or the planner balances, some with the
/// embedding or the loss alone; and layers that are recomputed by a list.
inline std::vector<Layout> stage_layouts() {
  std::vector<Layout> all;
  all.push_back({.pp = 2, .stages = "Et|tttL"});
  all.push_back({.pp = 4, .micro_batch = 2, .stages = "E|tt|tt|L"});
  all.push_back({.pp = 3, .stages = "balanced", .layers = 7});
  all.push_back({.tp = 2, .pp = 3, .sp = true, .schedule = "zb-h1", .stages = "balanced", .layers = 5});
  all.push_back({.pp = 2, .vpp = 3, .stages = "Ett|t|t|tt|t|L", .layers = 7});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v", .stages = "balanced", .layers = 7});
  all.push_back({.tp = 2, .pp = 2, .vpp = 2, .sp = true, .stages = "Et|(tt|)*2L", .layers = 5, .sharded = true});
  all.push_back({.pp = 2, .vpp = 2, .schedule = "dualpipev", .stages = "balanced", .layers = 6, .global_batch = 8});
  all.push_back({.pp = 2, .dp = 2, .stages = "balanced", .layers = 5, .untied = true, .sharded = true, .pooled = true});
  all.push_back({.pp = 3, .layers = 7, .with = "parallel.first_stage_layers=1"});
  all.push_back({.pp = 3, .layers = 7, .with = "parallel.last_stage_layers=1"});
  all.push_back({.pp = 2,
                 .vpp = 2,
                 .layers = 6,
                 .with = "parallel.account_for_embedding=true "
                         "parallel.account_for_loss=true"});
  all.push_back({.pp = 3, .layers = 4, .with = "parallel.standalone_embedding_stage=true"});
  all.push_back({.tp = 4, .pp = 3, .stages = "balanced", .layers = 5, .llama = 2});
  all.push_back({.tp = 2, .pp = 3, .sp = true, .stages = "Etttt|t|L", .layers = 5, .llama = 1});
  for (const int experts : {1, 2, 3}) {
    all.push_back({.pp = 3, .stages = "balanced", .layers = 5, .llama = 2, .experts = experts});
    all.push_back(
        {.pp = 2, .vpp = 2, .dp = 2, .stages = "Et|ttt|t|L", .layers = 5, .llama = 2, .experts = experts, .ep = 2});
  }
  // BERT and T5.
  all.push_back({.pp = 3, .stages = "balanced", .layers = 5, .bert = true});
  all.push_back({.tp = 2, .pp = 2, .vpp = 2, .sp = true, .stages = "Ett|t|tt|L", .layers = 5, .bert = true});
  all.push_back({.pp = 4, .stages = "E|ttt|t|L", .bert = true, .original = true});
  all.push_back({.pp = 3, .stages = "balanced", .layers = 3, .t5 = true});
  all.push_back({.tp = 2, .pp = 3, .sp = true, .stages = "balanced", .layers = 3, .t5 = true, .split = 1});
  all.push_back({.pp = 4, .stages = "balanced", .layers = 3, .t5 = true, .split = 2});
  all.push_back(
      {.pp = 2, .vpp = 2, .dp = 2, .stages = "Ettt|t|tt|L", .layers = 3, .untied = true, .sharded = true, .t5 = true});
  // Recomputation by layer.
  for (const char* layers : {"0", "1-2,4", "0-4:2", "nothing"}) {
    const std::string with = std::string("train.recompute_layers=") + layers;
    all.push_back({.micro_batch = 2, .recompute = "full", .layers = 5, .with = with});
    all.push_back({.tp = 2,
                   .pp = 3,
                   .sp = true,
                   .schedule = "zb-h1",
                   .recompute = "full",
                   .stages = "Et|ttt|tL",
                   .layers = 5,
                   .with = with});
    all.push_back({.pp = 2,
                   .vpp = 2,
                   .dp = 2,
                   .recompute = "full",
                   .stages = "Ett|t|tt|L",
                   .layers = 5,
                   .sharded = true,
                   .llama = 2,
                   .experts = 2,
                   .with = with});
    all.push_back({.pp = 3, .recompute = "full", .stages = "balanced", .layers = 3, .t5 = true, .with = with});
  }
  all.push_back({.pp = 2,
                 .recompute = "full",
                 .stages = "Et|ttttL",
                 .layers = 5,
                 .with = "train.recompute_layers=1-3 train.recompute_partial_microbatches=1"});
  return all;
}

}  // namespace megatron::train
