#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Options that must not show how the ranks are spread, each in layouts that could.
inline std::vector<Layout> option_layouts() {
  std::vector<Layout> all;
  for (const char* with :
       {"schedule.decoupled_lr=0.01 schedule.decoupled_min_lr=0.002", "optimizer.clip_norm=3 optimizer.clip_grad=0.02",
        "model.use_mup=true model.mup_base_hidden_size=8 model.mup_embedding_mult=3 "
        "model.mup_base_head_dim=4 optimizer.clip_grad=0.02"}) {
    std::vector<Layout> some;
    some.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true});
    some.push_back({.pp = 2, .vpp = 2, .dp = 2, .untied = true, .sharded = true, .pooled = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sharded = true, .bert = true});
    some.push_back({.tp = 2, .pp = 2, .dp = 2, .sharded = true, .pooled = true, .t5 = true, .split = 1});
    some.push_back({.tp = 4, .pp = 2, .dp = 2, .sharded = true, .llama = 2, .muon = true});
    if (std::string(with).starts_with("model.use_mup"))
      std::erase_if(some, [](const Layout& layout) { return layout.bert || layout.t5; });
    for (Layout& layout : some) {
      layout.with = with;
      all.push_back(layout);
    }
  }
  return all;
}

}  // namespace megatron::train
