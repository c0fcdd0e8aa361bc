#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/rules.h"
#include "tests/plan/refusal.h"

// Latent attention: which combinations of options are taken, and what each rank holds.
namespace megatron::plan {
namespace {

using config::RunConfig;
using testing::HasSubstr;

RunConfig latent_run() {
  RunConfig config;
  config.model.vocab_size = 1000;
  config.model.num_layers = 2;
  config.model.normalization = "RMSNorm";
  config.model.add_bias_linear = false;
  config.model.position_embedding_type = "rope";
  config.model.multi_latent_attention = config.model.qk_layernorm = config.model.rotary_interleaved = true;
  config.model.q_lora_rank = 48;
  config.model.qk_head_dim = 24;
  config.model.qk_pos_emb_head_dim = 16;
  config.model.v_head_dim = 32;
  return config;
}

TEST(Latents, AreRefusedWhereTheyDoNotFit) {
  EXPECT_EQ(refusal_of(latent_run(), [](RunConfig&) {}), "no error");
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> all = {
      {"is for model.architecture gpt", [](RunConfig& c) { c.model.architecture = "bert"; }},
      {"kv_lora_rank must be from 1", [](RunConfig& c) { c.model.kv_lora_rank = 0; }},
      {"q_lora_rank must be from 0", [](RunConfig& c) { c.model.q_lora_rank = -1; }},
      {"v_head_dim must be from 1", [](RunConfig& c) { c.model.v_head_dim = 0; }},
      {"must be even", [](RunConfig& c) { c.model.qk_pos_emb_head_dim = 15; }},
      {"needs model.position_embedding_type rope",
       [](RunConfig& c) {
         c.model.position_embedding_type = "none";
         c.model.rotary_interleaved = false;
       }},
      {"needs model.qk_layernorm", [](RunConfig& c) { c.model.qk_layernorm = false; }},
      {"excludes model.qk_layernorm_full", [](RunConfig& c) { c.model.qk_layernorm_full = true; }},
      {"excludes model.num_query_groups", [](RunConfig& c) { c.model.num_query_groups = 2; }},
      {"excludes model.kv_channels and model.rotary_percent", [](RunConfig& c) { c.model.kv_channels = 64; }},
      {"excludes model.kv_channels and model.rotary_percent", [](RunConfig& c) { c.model.rotary_percent = 0.5; }},
      {"has no biases", [](RunConfig& c) { c.model.add_qkv_bias = true; }},
      {"has no biases", [](RunConfig& c) { c.model.add_bias_linear = true; }},
      {"excludes model.use_mup", [](RunConfig& c) { c.model.use_mup = true; }},
      {"excludes model.use_mup", [](RunConfig& c) { c.model.query_pre_attn_scalar = 8; }},
      {"k_proj, with model.multi_latent_attention",
       [](RunConfig& c) {
         c.lora.rank = 4;
         c.lora.targets = {"k_proj"};
       }},
      {"q_proj, with model.q_lora_rank",
       [](RunConfig& c) {
         c.lora.rank = 4;
         c.lora.targets = {"q_proj"};
       }},
      {"q_b_proj, without model.q_lora_rank",
       [](RunConfig& c) {
         c.lora.rank = 4;
         c.lora.targets = {"q_b_proj"};
         c.model.q_lora_rank = 0;
       }},
      {"must be at most 262144", [](RunConfig& c) { c.model.num_attention_heads = 1 << 13; }},
      {"longrope_short_factor and model.longrope_long_factor must have a number above 0 for each pair",
       [](RunConfig& c) {
         c.model.rope_scaling_type = "longrope";
         c.model.rope_scaling_factor = 4;
       }},
      {"mscale must be from 0", [](RunConfig& c) { c.model.mscale = -1; }}};
  for (const auto& [rule, change] : all) EXPECT_THAT(refusal_of(latent_run(), change), HasSubstr(rule));
  EXPECT_EQ(
      refusal_of(latent_run(), [](RunConfig& c) { c.model.linear_bias_in = "mlp", c.model.add_bias_linear = true; }),
      "no error");
}

/// Down projections and norms are whole on each rank, which has a part of their gradients; up projections are divided
/// by heads.
TEST(Latents, AreMadeOnEachRankOfWhichItMakesItsHeads) {
  const ModelShape shape = resolve(latent_run()).shape;
  std::map<std::string, ParameterSpec> specs;
  for (const ParameterSpec& spec : model_parameters(shape, 2, 1)) specs[spec.name] = spec;
  const std::string layer = "decoder.layers.1.self_attention.";
  using Sizes = std::vector<std::int64_t>;
  const std::int64_t h = 256, heads = 4;
  for (const auto& [name, whole, local] : {std::tuple{"linear_q_down_proj.weight", Sizes{48, h}, Sizes{48, h}},
                                           {"q_layernorm.weight", Sizes{48}, Sizes{48}},
                                           {"linear_q_up_proj.weight", Sizes{heads * 40, 48}, Sizes{heads * 20, 48}},
                                           {"linear_kv_down_proj.weight", Sizes{32 + 16, h}, Sizes{32 + 16, h}},
                                           {"kv_layernorm.weight", Sizes{32}, Sizes{32}},
                                           {"linear_kv_up_proj.weight", Sizes{heads * 56, 32}, Sizes{heads * 28, 32}},
                                           {"linear_proj.weight", Sizes{h, heads * 32}, Sizes{h, heads * 16}}}) {
    const ParameterSpec& spec = specs.at(layer + name);
    EXPECT_EQ(spec.shape, whole) << name;
    EXPECT_EQ(spec.local_shape(), local) << name;
    EXPECT_EQ(spec.heads_partial, whole == local) << name;
    EXPECT_FALSE(spec.sequence_partial) << name;
  }
  EXPECT_EQ(specs.at(layer + "linear_kv_up_proj.weight").begin(), heads * 28) << "of the second half of the heads";
  EXPECT_FALSE(specs.contains(layer + "linear_qkv.weight"));
  RunConfig plain = latent_run();
  plain.model.q_lora_rank = 0;
  std::map<std::string, ParameterSpec> without;
  for (const ParameterSpec& spec : model_parameters(resolve(plain).shape, 1, 0)) without[spec.name] = spec;
  EXPECT_EQ(without.at(layer + "linear_q_proj.weight").shape, (Sizes{heads * 40, h}));
  EXPECT_FALSE(without.contains(layer + "q_layernorm.weight"));
}

/// DeepSeek-AI's own modeling_deepseek.py: scores by the square of what YaRN gives for mscale_all_dim, rotations by the
/// quotient of the two.
TEST(Latents, AreScaledAsYarnSays) {
  RunConfig config = latent_run();
  EXPECT_DOUBLE_EQ(resolve(config).shape.attention_scale, 1 / std::sqrt(40.0));
  config.model.rope_scaling_type = "yarn";
  config.model.rope_scaling_factor = 40;
  config.model.mscale_all_dim = 0.707;
  const auto factor = [](double m) { return 0.1 * m * std::log(40.0) + 1; };
  const ResolvedRun run = resolve(config);
  EXPECT_DOUBLE_EQ(run.shape.attention_scale, factor(0.707) * factor(0.707) / std::sqrt(40.0));
  EXPECT_DOUBLE_EQ(rotary_scale(run.config.model), factor(1) / factor(0.707));
  EXPECT_EQ(rotary_features(run.config.model, run.shape), 16);
}

}  // namespace
}  // namespace megatron::plan
