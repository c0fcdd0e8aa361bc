#include "megatron/interchange/megatron_lm/dist/dist_names.h"

#include <ATen/ops/randn.h>

#include <tuple>

#include "megatron/families/hf_config.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/interchange/weights.h"
#include "tests/interchange/in_memory.h"
#include "tests/interchange/support.h"

// Names and places of experts and latents. That they are Megatron-Core's is for tests/interop/test_megatron_core.py.
namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

config::ModelConfig with_experts() {
  config::ModelConfig model;
  model.vocab_size = model.max_position_embeddings = 32;
  model.num_layers = 3;
  model.hidden_size = 8;
  model.num_attention_heads = 2;
  model.ffn_hidden_size = 12;
  model.normalization = "RMSNorm";
  model.activation = "silu";
  model.gated_linear_unit = model.untie_embeddings_and_output_weights = true;
  model.add_bias_linear = false;
  model.position_embedding_type = "rope";
  model.num_experts = 4;
  model.moe_ffn_hidden_size = 6;
  model.moe_shared_expert_intermediate_size = 10;
  model.moe_shared_expert_gate = true;
  return model;
}

/// DeepSeek's layers, of which the first has no experts.
config::ModelConfig with_latents() {
  config::ModelConfig model = with_experts();
  model.multi_latent_attention = model.qk_layernorm = model.rotary_interleaved = true;
  model.q_lora_rank = 6;
  model.kv_lora_rank = 4;
  model.qk_head_dim = model.v_head_dim = 4;
  model.qk_pos_emb_head_dim = 2;
  model.rope_scaling_type = "yarn";
  model.rope_scaling_factor = 4;
  model.rope_original_positions = 4096;
  model.first_k_dense_replace = 1;
  model.moe_shared_expert_gate = false;
  model.moe_router_score_function = "sigmoid";
  model.moe_router_enable_expert_bias = true;
  return model;
}

InMemory drawn_weights(const config::ModelConfig& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const plan::ParameterSpec& spec : plan::model_parameters(families::shape_of(model), 1, 0))
    tensors[spec.name] = at::randn(spec.shape);
  return InMemory(std::move(tensors));
}

void write(const config::ModelConfig& model, const InMemory& weights, const fs::path& folder,
           const std::string& dtype = "") {
  families::FolderConfig config;
  config.model = model;
  ExportOptions options;
  options.dtype = dtype;
  write_torch_dist(weights, config, folder, options);
}

using Name = std::tuple<std::string, std::vector<std::int64_t>, std::vector<std::int64_t>>;

std::vector<Name> as_tuples(const std::vector<DistName>& names) {
  std::vector<Name> all;
  for (const auto& [name, index, extents] : names) all.emplace_back(name, index, extents);
  return all;
}

TEST(DistNames, AnExpertIsAPlaceInATensorOfAll) {
  const std::string ours = "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight";
  EXPECT_EQ(as_tuples(dist_names(families::shape_of(with_experts()), ours)),
            (std::vector<Name>{{"decoder.layers.mlp.experts.experts.linear_fc1.weight", {1, 2}, {3, 4}},
                               {"decoder.layers.1.mlp.experts.experts.linear_fc1.weight", {2}, {4}}}));
  // Layers that differ have tensors of their own.
  EXPECT_EQ(as_tuples(written_names(families::shape_of(with_latents()), ours)),
            (std::vector<Name>{{"decoder.layers.1.mlp.experts.experts.linear_fc1.weight", {2}, {4}}}));
  EXPECT_EQ(state_entry(families::shape_of(with_experts()), "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1"),
            "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_1.2_3.4");
}

TEST(DistNames, NormsAreWrittenUnderBothNamesWhereTheyDependOnWhatComputesThem) {
  const std::string norm = "decoder.layers.0.pre_mlp_layernorm.weight";
  EXPECT_EQ(as_tuples(written_names(families::shape_of(with_experts()), norm)),
            (std::vector<Name>{{"decoder.layers.mlp.linear_fc1.layer_norm_weight", {0}, {3}},
                               {"decoder.layers.pre_mlp_layernorm.weight", {0}, {3}}}));
  EXPECT_EQ(as_tuples(written_names(families::shape_of(with_latents()),
                                    "decoder.layers.2.self_attention.kv_layernorm.weight")),
            (std::vector<Name>{{"decoder.layers.2.self_attention.kv_layernorm.weight", {}, {}},
                               {"decoder.layers.2.self_attention.linear_kv_up_proj.layer_norm_weight", {}, {}}}));
  config::ModelConfig dense = with_experts();
  dense.num_experts = 0;
  EXPECT_EQ(as_tuples(written_names(families::shape_of(dense), norm)),
            (std::vector<Name>{{"decoder.layers.mlp.linear_fc1.layer_norm_weight", {0}, {3}}}));
}

TEST(DistNames, WhatIsWrittenOfExpertsAndLatentsIsReadBack) {
  for (const config::ModelConfig& model : {with_experts(), with_latents()}) {
    const TemporaryFolder folder;
    const InMemory weights = drawn_weights(model);
    const fs::path plain = folder.path() / "plain", halved = folder.path() / "halved";
    write(model, weights, plain);
    expect_same(read_all(*open_weights(plain)), read_all(weights));
    EXPECT_EQ(differences(model, plain), std::vector<std::string>());
    write(model, weights, halved, "bfloat16");
    const auto read = open_weights(halved);
    for (const std::string& name : read->tensors())
      EXPECT_EQ(read->dtype(name), name.ends_with("expert_bias") ? "F32" : "BF16") << name;
  }
}

TEST(DistNames, ArgumentsOfOtherExpertsAreRefused) {
  config::ModelConfig other = with_experts();
  other.num_experts = 2;
  const TemporaryFolder folder;
  write(with_experts(), drawn_weights(with_experts()), folder.path() / "one");
  write(other, drawn_weights(other), folder.path() / "other");
  fs::copy_file(folder.path() / "other/release/common.pt", folder.path() / "one/release/common.pt",
                fs::copy_options::overwrite_existing);
  expect_refused([&] { open_weights(folder.path() / "one"); }, {"must have the shape that the arguments say"});
  config::ModelConfig by_best = with_latents();
  by_best.moe_router_num_groups = 2;
  by_best.moe_router_group_topk = by_best.moe_router_group_best = 1;
  expect_refused([&] { write(by_best, drawn_weights(by_best), folder.path() / "never"); },
                 {"groups of experts", "--format huggingface"});
  config::ModelConfig rounded = with_latents();  // 6 / 4 experts of a group count: 1
  rounded.num_experts = 8;
  rounded.moe_router_topk = 6;
  rounded.moe_router_num_groups = rounded.moe_router_group_topk = 4;
  rounded.moe_router_group_best = 1;
  EXPECT_EQ(refusal([&] { write(rounded, drawn_weights(rounded), folder.path() / "rounded"); }), "");
}

}  // namespace
}  // namespace megatron::interchange
