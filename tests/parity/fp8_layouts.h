#pragma once
#include <string>
#include <vector>

#include "tests/parity/layouts.h"

namespace megatron::train {

/// Linear layers in 8 bits: delayed scales follow from whole steps, so that nobody's share of one may show. From the
/// second step on they are those of the first one's magnitudes. Scales of their own follow from whole tensors of a
/// microbatch: whoever has a part of one must know the others'. Scales of blocks follow from no microbatch: the one
/// rank computes the global batch at once.
inline std::vector<Layout> fp8_layouts() {
  const std::string hybrid = "fp8.format=hybrid fp8.amax_history_len=2 fp8.amax_compute_algo=max",
                    e4m3 = "fp8.format=e4m3 fp8.margin=1", half = "fp8.format=hybrid fp8.wgrad=false",
                    own = "fp8.format=hybrid fp8.recipe=tensorwise",
                    own_half = "fp8.format=e4m3 fp8.recipe=tensorwise fp8.wgrad=false",
                    wide = "fp8.format=hybrid fp8.recipe=tensorwise fp8.first_last_layers_bf16=true";
  std::vector<Layout> all;
  const auto add = [&](const std::string& with, Layout layout) {
    layout.with = layout.with.empty() ? with : with + " " + layout.with;
    all.push_back(std::move(layout));
  };
  add(hybrid, {.micro_batch = 1});
  add(hybrid, {.tp = 2, .micro_batch = 2, .sp = true});
  add(hybrid, {.dp = 2, .micro_batch = 2, .sharded = true, .pooled = true});
  for (const std::string& recipe : {hybrid, own}) {
    add(recipe, {.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v"});
    add(recipe, {.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .recompute = "full", .sharded = true});
    add(recipe, {.tp = 2,
                 .dp = 2,
                 .recompute = "selective",
                 .sharded = true,
                 .full = true,
                 .with = "train.recompute_modules=mlp"});
    add(recipe, {.tp = 2, .cp = 2, .micro_batch = 2, .sp = true, .llama = 2, .exchange = "p2p"});
    add(recipe, {.tp = 2, .dp = 2, .sp = true, .bert = true});
    add(recipe, {.tp = 2, .pp = 2, .sp = true, .t5 = true, .split = 1});
  }
  add(e4m3, {.tp = 4, .dp = 2, .micro_batch = 2});
  add(e4m3, {.cp = 2, .dp = 2, .llama = 4, .exchange = "a2a"});
  add(half, {.tp = 2, .pp = 2, .dp = 2, .llama = 2});
  add(half, {.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .llama = 2, .with = "model.mtp_num_layers=1"});
  add(half, {.tp = 2, .micro_batch = 8, .sp = true, .gloo = true});
  add(own, {.tp = 2, .dp = 2, .micro_batch = 2, .sp = true});
  add(own, {.tp = 4, .dp = 2, .micro_batch = 2, .sharded = true, .pooled = true});
  add(own, {.cp = 2, .dp = 2, .llama = 4, .exchange = "a2a"});
  add(own_half, {.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .llama = 2, .with = "model.mtp_num_layers=1"});
  add(own_half, {.tp = 2, .cp = 2, .micro_batch = 4, .llama = 2, .exchange = "allgather"});
  add(own, {.tp = 2, .pp = 2, .micro_batch = 2, .gloo = true});
  // The layers that stay wide are those of the model, not those of a stage.
  add(wide, {.tp = 2, .dp = 2, .micro_batch = 2, .sp = true, .sharded = true});
  add(wide, {.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v"});
  add(wide, {.tp = 2, .pp = 2, .cp = 2, .llama = 2, .exchange = "p2p"});
  add("fp8.format=e4m3 fp8.first_last_layers_bf16=true fp8.num_layers_at_end_in_bf16=2",
      {.pp = 4, .micro_batch = 2, .recompute = "full"});
  // The smallest model of which two ranks have blocks each; with 512 tokens two ranks that share sequences do.
  const std::string sizes = "fp8.recipe=blockwise model.hidden_size=256 model.ffn_hidden_size=256",
                    blocks = "fp8.format=e4m3 " + sizes, mixed = "fp8.format=hybrid " + sizes,
                    tokens =
                        "fp8.format=e4m3 fp8.recipe=blockwise model.hidden_size=128 model.ffn_hidden_size=128 "
                        "data.seq_length=512 model.max_position_embeddings=512";
  add(blocks, {.tp = 2, .micro_batch = 4, .layers = 2});
  add(blocks, {.tp = 2, .dp = 2, .micro_batch = 2, .sp = true, .layers = 2, .sharded = true, .pooled = true});
  add(blocks, {.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1", .recompute = "full", .layers = 2, .sharded = true});
  add(blocks, {.tp = 2, .dp = 2, .layers = 2, .llama = 2, .with = "fp8.wgrad=false"});
  add(blocks, {.tp = 2, .sp = true, .layers = 2, .bert = true});
  add(mixed, {.pp = 2, .vpp = 2, .schedule = "zb-v"});
  add(mixed, {.tp = 2, .pp = 2, .sp = true, .t5 = true, .split = 1, .with = "model.kv_channels=64"});
  add(mixed, {.tp = 2, .layers = 3, .with = "fp8.first_last_layers_bf16=true"});
  add(tokens, {.cp = 2, .layers = 2, .global_batch = 2, .llama = 2, .exchange = "p2p"});
  add(tokens, {.cp = 2, .micro_batch = 2, .layers = 2, .global_batch = 2, .llama = 4, .exchange = "a2a"});
  // Blocks of 32: of a quarter of the features, and of an eighth of the tokens.
  const std::string small = "fp8.recipe=mxfp8 model.hidden_size=128 model.ffn_hidden_size=128",
                    mx = "fp8.format=e4m3 " + small, mx_mixed = "fp8.format=hybrid " + small,
                    mx_tokens = mx + " data.seq_length=128 model.max_position_embeddings=128";
  add(mx, {.micro_batch = 1});
  add(mx, {.tp = 2, .dp = 2, .micro_batch = 2, .sp = true, .sharded = true, .pooled = true});
  add(mx, {.tp = 4, .micro_batch = 4});
  add(mx, {.tp = 2, .pp = 2, .dp = 2, .sp = true, .schedule = "zb-h1", .recompute = "full", .sharded = true});
  add(mx, {.tp = 2, .dp = 2, .llama = 4, .with = "fp8.wgrad=false"});
  add(mx, {.tp = 2, .dp = 2, .sp = true, .bert = true});
  add(mx, {.tp = 2, .pp = 2, .micro_batch = 2, .gloo = true});
  add(mx, {.tp = 2, .dp = 2, .recompute = "selective", .sharded = true, .full = true});
  add(mx_mixed, {.pp = 2, .vpp = 2, .dp = 2, .schedule = "zb-v"});
  add(mx_mixed, {.tp = 2, .pp = 2, .sp = true, .t5 = true, .split = 1, .with = "model.kv_channels=32"});
  add(mx_mixed, {.tp = 2, .pp = 2, .sp = true, .llama = 4, .with = "model.mtp_num_layers=1"});
  add(mx_mixed, {.tp = 2, .dp = 2, .with = "fp8.first_last_layers_bf16=true"});
  add(mx_tokens, {.cp = 2, .llama = 4, .exchange = "p2p"});
  add(mx_tokens, {.tp = 2, .cp = 2, .micro_batch = 2, .sp = true, .llama = 4, .exchange = "p2p"});
  add(mx_tokens, {.cp = 2, .dp = 2, .llama = 4, .exchange = "a2a"});
  return all;
}

}  // namespace megatron::train
