#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"

// What flags of Megatron-LM's layers and positions stand for.
namespace megatron::config {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNetwork =
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 2 --train-iters 4 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 90 ";

ModelConfig model_of(const std::string& words, const char* program = "pretrain_gpt") {
  return translate_megatron_arguments(program, shell_words(kNetwork + words, "test"), {.world_size = 1}).config.model;
}

std::string refusal_of(const std::string& words, const char* program = "pretrain_gpt") {
  try {
    model_of(words, program);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string why_ignored(const std::string& words, const std::string& flag) {
  const auto translated =
      translate_megatron_arguments("pretrain_gpt", shell_words(kNetwork + words, "test"), {.world_size = 1});
  for (const auto& ignored : translated.ignored)
    if (ignored.words.starts_with(flag)) return ignored.text;
  return "";
}

TEST(MegatronNetwork, NormalizesQueriesAndKeysWithoutWeights) {
  EXPECT_FALSE(model_of("").qk_l2_norm);
  EXPECT_TRUE(model_of("--qk-l2-norm").qk_l2_norm);
  EXPECT_FALSE(model_of("--qk-l2-norm --qk-layernorm").qk_layernorm) << "whose place it takes there";
  EXPECT_THAT(refusal_of("--qk-l2-norm", "pretrain_bert"), HasSubstr("without weights, but of a GPT"));
}

TEST(MegatronNetwork, GatesWhatAttentionGives) {
  EXPECT_FALSE(model_of("").attention_output_gate);
  EXPECT_TRUE(model_of("--attention-output-gate").attention_output_gate);
  EXPECT_THAT(refusal_of("--attention-output-gate", "pretrain_bert"), HasSubstr("gated attention, but of a GPT"));
}

TEST(MegatronNetwork, KeepsTheStreamInFloat32) {
  EXPECT_FALSE(model_of("--bf16").fp32_residual_connection);
  EXPECT_TRUE(model_of("--bf16 --fp32-residual-connection").fp32_residual_connection);
  EXPECT_TRUE(model_of("--bf16 --fp32-residual-connection", "pretrain_bert").fp32_residual_connection);
}

using Stretch = std::tuple<std::string, std::string, double, std::int64_t, double, double, bool>;
Stretch stretch_of(const ModelConfig& m) {
  return {m.position_embedding_type,           m.rope_scaling_type, m.rope_scaling_factor,
          m.rope_original_positions,           m.yarn_beta_fast,    m.yarn_beta_slow,
          m.yarn_correction_range_round_to_int};
}

TEST(MegatronNetwork, StretchesPositionsByYarn) {
  const std::string yarn = "--position-embedding-type yarn --rotary-scaling-factor 8 ";
  const ModelConfig plain = model_of(yarn);
  EXPECT_EQ(stretch_of(plain), Stretch("rope", "yarn", 8, 4096, 32, 1, true)) << "argument_utils.py's defaults";
  EXPECT_EQ(plain.yarn_attention_factor, 0) << "0.1 ln 8 + 1";
  EXPECT_EQ(stretch_of(model_of(yarn + "--yarn-original-max-position-embeddings 512 --yarn-beta-fast 16 "
                                       "--yarn-beta-slow 2 --no-yarn-correction-range-round-to-int")),
            Stretch("rope", "yarn", 8, 512, 16, 2, false));
  // _yarn_get_concentration_factor(8, 0.7, 0.9) of megatron-core.
  EXPECT_NEAR(model_of(yarn + "--mscale 0.7 --mscale-all-dim 0.9").yarn_attention_factor,
              (0.07 * std::log(8) + 1) / (0.09 * std::log(8) + 1), 1e-15);
  EXPECT_EQ(model_of(yarn + "--rotary-percent 0.5").rotary_percent, 1) << "which it does not read there";
  EXPECT_EQ(why_ignored(yarn + "--use-rope-scaling", "--use-rope-scaling"), "with YaRN");
  EXPECT_EQ(why_ignored("--yarn-beta-fast 4", "--yarn-beta-fast"), "without --position-embedding-type yarn");
  EXPECT_THAT(refusal_of(yarn + "--rotary-interleaved"), HasSubstr("--rotary-interleaved (YaRN"));
  EXPECT_THAT(refusal_of(yarn, "pretrain_bert"), HasSubstr("YaRN of models other than GPTs"));
  EXPECT_THAT(refusal_of(yarn + "--multi-latent-attention"), HasSubstr("YaRN of latents by another flag"));
}

TEST(MegatronNetwork, StretchesPositionsAsTheBuilderOfGptOssDoes) {
  const ModelConfig m = model_of("--enable-gpt-oss --rotary-base 150000 --rotary-scaling-factor 2 --mscale 3");
  EXPECT_EQ(stretch_of(m), Stretch("rope", "yarn", 32, 131072, 32, 1, false));
  EXPECT_EQ(std::tuple(m.yarn_attention_factor, m.rotary_base), std::tuple(0, 150000));
  EXPECT_EQ(why_ignored("--enable-gpt-oss --mscale 3", "--mscale"), "with --enable-gpt-oss");
}

TEST(MegatronNetwork, InterpolatesPositions) {
  const std::string rope = "--position-embedding-type rope --rotary-seq-len-interpolation-factor ";
  const ModelConfig m = model_of(rope + "4");
  EXPECT_EQ(std::tuple(m.rope_scaling_type, m.rope_scaling_factor), std::tuple("linear", 4.0));
  EXPECT_EQ(model_of(rope + "1").rope_scaling_factor, 1);
  EXPECT_EQ(model_of(rope + "1 --use-rope-scaling").rope_scaling_factor, 8);
  EXPECT_THAT(refusal_of(rope + "4 --use-rope-scaling"), HasSubstr("interpolation of rotary positions with"));
  EXPECT_EQ(why_ignored("--rotary-seq-len-interpolation-factor 4", "--rotary-seq"), "without rotary positions");
}

}  // namespace
}  // namespace megatron::config
