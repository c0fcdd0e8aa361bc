#pragma once
#include <cctype>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/schedule/table.h"

namespace megatron::train {

/// How one training is spread over ranks.
struct Layout {
  int tp = 1, pp = 1, vpp = 1, cp = 1, dp = 1;
  std::int64_t micro_batch = 1;
  bool sp = false;
  std::string schedule = {}, communication = "overlapped", recompute = "none";
  bool shapes_vary = false, scatter_gather = true, gloo = false;
  std::string stages = {};   ///< parallel.pp_layout
  std::int64_t layers = 0;   ///< of a T5 in each stack; 0: four, of a T5 two
  int microbatch_group = 0;  ///< parallel.microbatch_group_size
  bool untied = false;       ///< an output layer of its own
  bool sharded = false;      ///< optimizer.use_distributed_optimizer
  bool pooled = false;       ///< and optimizer.data_parallel_sharding_strategy optim_grads
  bool full = false;         ///< or optim_grads_params
  int global_batch = 8;
  /// Key and value heads of a model of Llama's layers (RMSNorm, SwiGLU, rotary positions, no biases); 0: GPT-2's.
  int llama = 0;
  /// A BERT, with its norms before each branch or, `original`, after the residual sums.
  bool bert = false, original = false;
  /// A T5 of two layers each; `split`: parallel.pipeline_split_rank.
  bool t5 = false;
  int split = 0;
  /// A mixture of experts in place of the MLPs of `llama`: 1 in every layer; 2 in every other one, with a shared
  /// expert; 3 with groups of experts, biases that even out their load, and a capacity; 4 with what GPT-OSS has:
  /// biases, clamped gates, sinks and windows in every other layer, and with jitter of what routers read.
  int experts = 0;
  int ep = 1;                 ///< parallel.ep
  bool muon = false;          ///< optimizer.name, which sees whole matrices
  std::string with = {};      ///< options in their plain spelling, "schedule.decoupled_lr=0.01", separated by spaces
  std::string exchange = {};  ///< parallel.cp_comm_type
  int latents = 0;         ///< of `llama`'s layers: 1 of keys and values, 2 of queries too, with values that are wider
  bool documents = false;  ///< samples are packed with two of them
  bool preferences = false;  ///< the loss is that of dpo.beta, of pairs
  std::string family = {};   ///< which `with` describes (family_layouts.h)

  int ranks() const { return tp * pp * cp * dp; }
};

inline std::string name_of(const Layout& layout) {
  std::string name = layout.family + (layout.family.empty() ? "tp" : "_tp") + std::to_string(layout.tp);
  if (layout.sp) name += "_sp";
  name += "_pp" + std::to_string(layout.pp);
  if (layout.vpp > 1) name += "_vpp" + std::to_string(layout.vpp);
  if (layout.cp > 1) name += "_cp" + std::to_string(layout.cp) + layout.exchange;
  if (layout.documents) name += "_documents";
  if (layout.preferences) name += "_preferences";
  name += "_dp" + std::to_string(layout.dp) + "_mbs" + std::to_string(layout.micro_batch);
  if (!layout.schedule.empty()) name += "_" + layout.schedule;
  if (layout.pp > 1) name += "_" + layout.communication;
  if (layout.recompute != "none") name += "_" + layout.recompute;
  if (layout.shapes_vary) name += "_varying";
  if (!layout.scatter_gather) name += "_whole";
  if (layout.layers > 0) name += "_layers" + std::to_string(layout.layers);
  if (!layout.stages.empty()) name += "_stages_" + layout.stages;
  if (layout.microbatch_group > 0) name += "_group" + std::to_string(layout.microbatch_group);
  if (layout.untied) name += "_untied";
  if (layout.sharded) name += "_sharded";
  if (layout.pooled) name += "_grads";
  if (layout.full) name += "_params";
  if (layout.llama > 0) name += "_llama" + std::to_string(layout.llama);
  if (layout.experts > 0) name += "_experts" + std::to_string(layout.experts);
  if (layout.latents > 0) name += "_latents" + std::to_string(layout.latents);
  if (layout.ep > 1) name += "_ep" + std::to_string(layout.ep);
  if (layout.t5) name += "_t5";
  if (layout.split > 0) name += "_split" + std::to_string(layout.split);
  if (layout.bert) name += layout.original ? "_original_bert" : "_bert";
  if (layout.muon) name += "_muon";
  if (!layout.with.empty() && layout.family.empty()) name += "_with_" + layout.with;
  if (layout.gloo) name += "_gloo";
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

/// Tensor and data parallelism, each pipeline schedule, each communication, sequence parallelism, recomputation, and
/// what they are together. Four layers, a global batch of eight.
inline std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int tp : {1, 2, 4})
    for (const int dp : {1, 2, 4})
      for (const std::int64_t micro_batch : {1, 2}) all.push_back({.tp = tp, .dp = dp, .micro_batch = micro_batch});
  all.push_back({.micro_batch = 4});
  for (const int tp : {2, 4}) all.push_back({.tp = tp, .micro_batch = 2, .sp = true});
  all.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true});
  for (const char* how : {"unbatched", "batched", "overlapped"}) {
    for (const schedule::ScheduleInfo& info : schedule::schedules()) {
      all.push_back({.pp = 2, .vpp = info.min_chunks, .schedule = info.name, .communication = how});
      if (info.takes(1)) all.push_back({.pp = 4, .micro_batch = 2, .schedule = info.name, .communication = how});
    }
  }
  all.push_back({.pp = 2, .micro_batch = 8});  // one microbatch
  all.push_back({.pp = 4, .micro_batch = 4});  // fewer microbatches than stages
  all.push_back({.pp = 2, .vpp = 2, .micro_batch = 4});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v"});
  all.push_back({.pp = 2, .dp = 2, .schedule = "auto"});
  all.push_back({.tp = 2, .pp = 2, .shapes_vary = true});
  all.push_back({.tp = 2, .pp = 2, .scatter_gather = false});
  all.push_back({.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .shapes_vary = true});
  for (const char* recompute : {"selective", "full"}) {
    all.push_back({.micro_batch = 2, .recompute = recompute});
    all.push_back({.tp = 2, .pp = 2, .recompute = recompute});
    all.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = recompute});
    all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .recompute = recompute});
  }
  all.push_back({.tp = 2, .pp = 4, .sp = true, .recompute = "full", .with = "train.recompute_partial_microbatches=1"});
  for (const bool sp : {false, true}) {
    all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = sp});
    all.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = sp});
    all.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = sp, .schedule = "zb-v"});
    all.push_back({.tp = 2, .pp = 4, .dp = 2, .sp = sp, .schedule = "zb-h1"});
    all.push_back({.tp = 4, .pp = 2, .dp = 2, .sp = sp, .schedule = "gpipe", .communication = "batched"});
  }
  all.push_back({.pp = 4, .dp = 4, .micro_batch = 1});
  all.push_back({.tp = 4, .pp = 4, .micro_batch = 1, .sp = true, .recompute = "full"});
  all.push_back({.pp = 4, .stages = "E|tt|t|tL"});  // the embedding alone
  all.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .stages = "Ettt|tL"});
  all.push_back({.pp = 2, .vpp = 2, .schedule = "interleaved", .microbatch_group = 4});
  all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .untied = true});
  all.push_back({.tp = 2, .pp = 4, .sp = true, .untied = true});
  for (const int groups : {1, 2, 4}) {  // on up to four ranks: four, two or one with the same key and value
    all.push_back({.tp = 2, .dp = 2, .llama = groups});
    all.push_back({.tp = 4, .micro_batch = 2, .sp = true, .llama = groups});
    all.push_back({.tp = 4, .pp = 2, .sp = groups > 1, .schedule = "zb-h1", .llama = groups});
  }
  for (const schedule::ScheduleInfo& info : schedule::schedules())
    if (info.takes(1))
      all.push_back({.pp = 4, .schedule = info.name, .llama = 2});
    else
      all.push_back({.tp = 4, .pp = 2, .vpp = info.min_chunks, .dp = 2, .schedule = info.name, .llama = 2});
  for (const char* recompute : {"selective", "full"}) {
    all.push_back({.tp = 4, .pp = 2, .sp = true, .recompute = recompute, .llama = 2});
    all.push_back({.tp = 2, .pp = 2, .vpp = 2, .schedule = "zb-v", .recompute = recompute, .llama = 1});
  }
  all.push_back({.pp = 2, .dp = 2, .untied = true, .llama = 2});
  all.push_back({.tp = 4, .pp = 2, .dp = 2, .micro_batch = 2, .sp = true, .untied = true, .llama = 1});
  all.push_back({.tp = 4, .pp = 2, .sp = true, .gloo = true, .llama = 2});
  all.push_back({.tp = 2, .micro_batch = 8, .gloo = true});
  all.push_back({.dp = 2, .micro_batch = 4, .gloo = true});
  all.push_back({.tp = 2, .dp = 2, .gloo = true});
  all.push_back({.pp = 2, .schedule = "zb-h1", .gloo = true});
  all.push_back({.tp = 2, .pp = 2, .sp = true, .gloo = true});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .communication = "batched", .gloo = true});
  return all;
}

/// A BERT in each kind of layout: its heads, its two losses and its masks must not show how it is spread.
inline std::vector<Layout> bert_layouts() {
  std::vector<Layout> all;
  all.push_back({.dp = 4});
  all.push_back({.tp = 4, .dp = 2, .micro_batch = 2});
  all.push_back({.tp = 2, .dp = 2, .sp = true});
  all.push_back({.tp = 4, .micro_batch = 8, .sp = true, .recompute = "full"});
  all.push_back({.pp = 4, .micro_batch = 2});
  all.push_back({.pp = 4, .stages = "E|tt|t|tL"});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2});
  all.push_back({.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "selective"});
  all.push_back({.pp = 2, .vpp = 2, .schedule = "zb-v", .untied = true});
  all.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = true});
  for (const bool pooled : {false, true}) {
    all.push_back({.dp = 3, .sharded = true, .pooled = pooled, .global_batch = 12});
    all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .sharded = true, .pooled = pooled});
    all.push_back({.pp = 2, .vpp = 2, .dp = 2, .untied = true, .sharded = true, .pooled = pooled});
  }
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .gloo = true});
  const std::size_t both = all.size();
  for (std::size_t i = 0; i < both; i += 2) {  // every other in the original order too
    all.push_back(all[i]);
    all.back().original = true;
  }
  for (Layout& layout : all) layout.bert = true;
  return all;
}

/// The distributed optimizer with each kind of layout, and with numbers of ranks that divide nothing.
inline std::vector<Layout> sharded_layouts() {
  std::vector<Layout> all;
  for (const int dp : {1, 2, 4}) all.push_back({.dp = dp, .micro_batch = 2});
  all.push_back({.dp = 3, .global_batch = 12});
  all.push_back({.tp = 2, .dp = 2});
  all.push_back({.tp = 2, .dp = 3, .sp = true, .global_batch = 12});
  all.push_back({.tp = 2, .dp = 2, .micro_batch = 2, .sp = true, .recompute = "full"});
  all.push_back({.pp = 2, .dp = 2});
  all.push_back({.pp = 2, .dp = 3, .schedule = "zb-h1", .global_batch = 12});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v"});
  all.push_back({.pp = 4, .dp = 2, .stages = "E|tt|t|tL"});
  all.push_back({.pp = 2, .dp = 2, .untied = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true});
  all.push_back({.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = true, .recompute = "selective"});
  all.push_back({.tp = 4, .dp = 2, .sp = true, .llama = 2});
  all.push_back({.tp = 4, .pp = 2, .dp = 2, .untied = true, .llama = 1});
  all.push_back({.dp = 2, .micro_batch = 2, .gloo = true});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .gloo = true});
  for (Layout& layout : all) layout.sharded = true;
  return all;
}

/// The same with gradients sharded too, and the schedules in which contributions of microbatches interleave.
inline std::vector<Layout> pooled_layouts() {
  std::vector<Layout> all = sharded_layouts();
  for (const char* recompute : {"none", "full"}) {
    all.push_back({.pp = 2, .dp = 2, .schedule = "gpipe", .recompute = recompute});
    all.push_back({.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .recompute = recompute});
    for (const schedule::ScheduleInfo& info : schedule::schedules())
      if (info.v_shaped)
        all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = info.name, .recompute = recompute, .untied = true});
  }
  all.push_back({.pp = 4, .dp = 2, .schedule = "zb-h1", .llama = 2});
  all.push_back({.dp = 2, .untied = true});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "interleaved", .untied = true});
  all.push_back({.pp = 2, .vpp = 2, .dp = 2, .schedule = "interleaved", .gloo = true});
  for (Layout& layout : all) layout.sharded = layout.pooled = true;
  return all;
}

}  // namespace megatron::train
