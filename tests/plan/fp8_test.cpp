#include "megatron/plan/parameters/fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/rules.h"
#include "tests/plan/refusal.h"

// Training in 8 bits: the scales, the layers, and what it excludes.
namespace megatron::plan {
namespace {

using config::RunConfig;
using testing::ElementsAre;
using testing::HasSubstr;

RunConfig fp8_run(const std::string& format = "hybrid") {
  RunConfig config;
  config.model.num_layers = 2;
  config.model.vocab_size = 1000;
  config.fp8.format = format;
  return config;
}

// As Transformer Engine's first recipe computes it: exp = floor(log2(fp8_max / amax)) - margin, scale = 2^|exp|, and
// its inverse where exp is below 0.
double published_scale(double amax, double fp8_max, int margin) {
  const double exponent = std::floor(std::log2(fp8_max / amax)) - margin;
  const double scale = std::round(std::pow(2.0, std::abs(exponent)));
  return exponent < 0 ? 1 / scale : scale;
}

TEST(Fp8Scale, IsThePublishedOne) {
  for (const auto& [type, most] : {std::pair{Fp8Type::E4M3, 448.0}, {Fp8Type::E5M2, 57344.0}})
    for (const int margin : {0, 1, 3})
      for (double amax = 3e-8; amax < 1e9; amax *= 1.37)
        EXPECT_EQ(fp8_scale(amax, type, margin, 1), published_scale(amax, most, margin)) << amax;
}

TEST(Fp8Scale, BringsTheLargestJustBelowTheLargestNumber) {
  EXPECT_EQ(fp8_scale(448, Fp8Type::E4M3, 0, 1), 1);
  EXPECT_EQ(fp8_scale(std::nextafter(448, 449), Fp8Type::E4M3, 0, 1), 0.5);
  EXPECT_EQ(fp8_scale(7, Fp8Type::E4M3, 0, 1), 64);
  EXPECT_EQ(fp8_scale(57344, Fp8Type::E5M2, 0, 1), 1);
  EXPECT_EQ(fp8_scale(57344, Fp8Type::E5M2, 2, 1), 0.25);
  for (float amax = 1e-6F; amax < 1e6F; amax *= 1.01F) {
    const double scaled = fp8_scale(amax, Fp8Type::E4M3, 0, 1) * amax;
    EXPECT_LE(scaled, 448);
    EXPECT_GT(scaled, 224);
  }
}

TEST(Fp8Scale, StaysWhereNothingSaysAnother) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double amax : {0.0, -1.0, kInfinity, std::nan("")}) EXPECT_EQ(fp8_scale(amax, Fp8Type::E4M3, 0, 8), 8);
  EXPECT_EQ(fp8_scale(1e-300, Fp8Type::E4M3, 0, 1), 0x1p126);
  EXPECT_EQ(fp8_scale(std::numeric_limits<double>::denorm_min(), Fp8Type::E5M2, 0, 1), 0x1p126);
  EXPECT_EQ(fp8_scale(1e300, Fp8Type::E4M3, 0, 1), 0x1p-126);
}

TEST(Fp8Recipe, FollowsFromTheOptions) {
  EXPECT_FALSE(fp8_recipe(config::Fp8Config()));
  config::Fp8Config options;
  options.format = "hybrid";
  Fp8Recipe recipe = fp8_recipe(options).value();
  EXPECT_EQ(recipe.type(Fp8Operand::Input), Fp8Type::E4M3);
  EXPECT_EQ(recipe.type(Fp8Operand::Weight), Fp8Type::E4M3);
  EXPECT_EQ(recipe.type(Fp8Operand::OutputGradient), Fp8Type::E5M2);
  EXPECT_FALSE(recipe.largest_of_history);
  EXPECT_TRUE(recipe.weight_gradients);
  options = {.format = "e4m3", .margin = 1, .amax_history_len = 9, .amax_compute_algo = "max", .wgrad = false};
  recipe = fp8_recipe(options).value();
  EXPECT_EQ(recipe.type(Fp8Operand::OutputGradient), Fp8Type::E4M3);
  EXPECT_EQ(recipe.margin, 1);
  EXPECT_EQ(recipe.history, 9);
  EXPECT_TRUE(recipe.largest_of_history);
  EXPECT_FALSE(recipe.weight_gradients);
  EXPECT_TRUE(recipe.delayed());
  options.recipe = "tensorwise";
  recipe = fp8_recipe(options).value();
  EXPECT_EQ(recipe.scales, Fp8Scales::Tensor);
  EXPECT_EQ(recipe.history, 0);
  EXPECT_EQ(recipe.type(Fp8Operand::OutputGradient), Fp8Type::E4M3);
  EXPECT_FALSE(recipe.weight_gradients);
  options.recipe = "blockwise";
  recipe = fp8_recipe(options).value();
  EXPECT_TRUE(recipe.in_blocks());
  EXPECT_FALSE(recipe.delayed());
  EXPECT_EQ(recipe.history, 0);
  EXPECT_EQ(recipe.type(Fp8Operand::OutputGradient), Fp8Type::E4M3);
  EXPECT_FALSE(recipe.weight_gradients);
  EXPECT_EQ(recipe.block(), 128);
  EXPECT_TRUE(recipe.in_squares(Fp8Operand::Weight));
  EXPECT_FALSE(recipe.in_squares(Fp8Operand::Input));
  options.format = "hybrid";  // as Transformer Engine has it
  EXPECT_EQ(fp8_recipe(options).value().type(Fp8Operand::OutputGradient), Fp8Type::E5M2);
  options.recipe = "mxfp8";
  recipe = fp8_recipe(options).value();
  EXPECT_TRUE(recipe.in_blocks());
  EXPECT_EQ(recipe.history, 0);
  EXPECT_EQ(recipe.block(), 32);
  EXPECT_FALSE(recipe.in_squares(Fp8Operand::Weight));
  EXPECT_EQ(recipe.type(Fp8Operand::OutputGradient), Fp8Type::E5M2);
  EXPECT_EQ(recipe.type(Fp8Operand::Weight), Fp8Type::E4M3);
}

TEST(Fp8Layers, AreThoseOfTransformerLayers) {
  EXPECT_THAT(fp8_layers(resolve(fp8_run()).shape),
              ElementsAre("decoder.layers.0.self_attention.linear_qkv", "decoder.layers.0.self_attention.linear_proj",
                          "decoder.layers.0.mlp.linear_fc1", "decoder.layers.0.mlp.linear_fc2",
                          "decoder.layers.1.self_attention.linear_qkv", "decoder.layers.1.self_attention.linear_proj",
                          "decoder.layers.1.mlp.linear_fc1", "decoder.layers.1.mlp.linear_fc2"));
  RunConfig t5 = fp8_run();
  t5.model.architecture = "t5";
  t5.model.num_layers = 1;
  t5.data.decoder_seq_length = 32;
  const std::vector<std::string> both = fp8_layers(resolve(t5).shape);
  EXPECT_EQ(both.size(), 4u + 7u) << "cross attention has three";
  RunConfig depths = fp8_run();
  depths.model.position_embedding_type = "rope";
  depths.model.mtp_num_layers = 1;
  EXPECT_EQ(fp8_layers(resolve(depths).shape).back(), "mtp.layers.0.transformer_layer.mlp.linear_fc2");
}

TEST(Fp8Layers, LeaveOutTheFirstAndTheLastOfAStack) {
  RunConfig config = fp8_run();
  config.model.num_layers = 5;
  config.fp8.first_last_layers_bf16 = true;
  config.fp8.num_layers_at_start_in_bf16 = 2;
  const auto numbers = [](const RunConfig& run) {
    std::vector<std::string> in_8_bits;
    for (const std::string& name : fp8_layers(resolve(run).shape))
      if (name.ends_with("linear_fc1")) in_8_bits.push_back(name.substr(0, name.find(".mlp")));
    return in_8_bits;
  };
  EXPECT_THAT(numbers(config), ElementsAre("decoder.layers.2", "decoder.layers.3"));
  config.fp8.num_layers_at_end_in_bf16 = 0;
  EXPECT_THAT(numbers(config), ElementsAre("decoder.layers.2", "decoder.layers.3", "decoder.layers.4"));
  config.model.position_embedding_type = "rope";
  config.model.mtp_num_layers = 1;
  config.fp8.num_layers_at_end_in_bf16 = 2;
  EXPECT_THAT(numbers(config), ElementsAre("decoder.layers.2", "mtp.layers.0.transformer_layer"));
  RunConfig t5 = fp8_run();
  t5.model.architecture = "t5";
  t5.model.num_layers = 3;
  t5.data.decoder_seq_length = 32;
  t5.fp8.first_last_layers_bf16 = true;
  EXPECT_THAT(numbers(t5), ElementsAre("encoder.layers.1", "decoder.layers.1"));
  t5.model.num_layers = 2;
  t5.model.decoder_num_layers = 3;
  EXPECT_THAT(numbers(t5), ElementsAre("decoder.layers.1")) << "the shorter stack has none left";
}

TEST(Fp8Rules, RefuseWhatScalesWouldFollowTheLayoutWith) {
  EXPECT_EQ(refusal_of(fp8_run(), [](RunConfig&) {}), "no error");
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> all = {
      {"fp8.format must be one of", [](RunConfig& c) { c.fp8.format = "e5m2"; }},
      {"fp8.recipe must be one of", [](RunConfig& c) { c.fp8.recipe = "custom"; }},
      {"fp8.amax_compute_algo must be one of", [](RunConfig& c) { c.fp8.amax_compute_algo = "mean"; }},
      {"fp8.margin must be from", [](RunConfig& c) { c.fp8.margin = -1; }},
      {"fp8.amax_history_len must be from", [](RunConfig& c) { c.fp8.amax_history_len = 0; }},
      {"excludes model.num_experts",
       [](RunConfig& c) {
         c.model.num_experts = 4;
         c.model.gated_linear_unit = true;
         c.model.add_bias_linear = false;
       }},
      {"Some layers must be left to compute in 8 bits",
       [](RunConfig& c) {
         c.fp8.first_last_layers_bf16 = true;
         c.fp8.num_layers_at_end_in_bf16 = c.model.num_layers;
         c.fp8.num_layers_at_start_in_bf16 = 0;
       }},
      {"fp8.num_layers_at_start_in_bf16 must be from",
       [](RunConfig& c) {
         c.fp8.first_last_layers_bf16 = true;
         c.fp8.num_layers_at_start_in_bf16 = -1;
       }},
      {"excludes lora.rank", [](RunConfig& c) { c.lora.rank = 4; }},
      {"excludes dpo.beta",
       [](RunConfig& c) {
         c.dpo.beta = 0.1;
         c.train.micro_batch_size = 2;
       }},
      {"parallel.tp must be at most model.num_query_groups", [](RunConfig& c) {
         c.model.num_query_groups = 1;
         c.parallel.tp = c.parallel.world_size = 2;
       }}};
  for (const auto& [rule, change] : all) EXPECT_THAT(refusal_of(fp8_run(), change), HasSubstr(rule)) << rule;
  RunConfig latents = fp8_run();
  latents.model.multi_latent_attention = latents.model.qk_layernorm = latents.model.rotary_interleaved = true;
  latents.model.position_embedding_type = "rope";
  latents.model.normalization = "RMSNorm";
  latents.model.add_bias_linear = false;
  EXPECT_THAT(refusal_of(latents, [](RunConfig&) {}), HasSubstr("excludes model.multi_latent_attention"));
}

// No rank may have a part of a block: of 128 features of what tensor-parallel ranks divide, of each matrix of a gated
// unit, of 128 tokens of what ranks of context parallelism share.
TEST(Fp8Rules, RefuseRanksWithPartsOfBlocks) {
  RunConfig fits = fp8_run();
  fits.fp8.recipe = "blockwise";
  fits.model.hidden_size = 256;
  fits.model.num_attention_heads = 4;
  fits.model.ffn_hidden_size = 256;
  fits.model.position_embedding_type = "rope";
  fits.model.gated_linear_unit = true;
  fits.data.seq_length = 512;
  fits.parallel.tp = fits.parallel.cp = 2;
  fits.parallel.world_size = 4;
  EXPECT_EQ(refusal_of(fits, [](RunConfig&) {}), "no error");
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> all = {
      {"got:  768 features of decoder.layers.0.self_attention.linear_qkv, tp 4\n  fix:  --fp8-recipe tensorwise",
       [](RunConfig& c) {
         c.parallel.tp = c.parallel.world_size = 4;
         c.parallel.cp = 1;
       }},
      {"got:  192 features of decoder.layers.0.mlp.linear_fc1, tp 2\n  fix:  --fp8-recipe tensorwise",
       [](RunConfig& c) { c.model.ffn_hidden_size = 192; }},
      {"got:  320 features of decoder.layers.0.self_attention.linear_qkv, tp 2",
       [](RunConfig& c) {
         c.model.num_query_groups = 2;
         c.model.kv_channels = 40;  // (4 + 2 x 2) x 40
       }},
      {"got:  640 tokens, cp 2\n  fix:  --seq-length 1024", [](RunConfig& c) { c.data.seq_length = 640; }}};
  for (const auto& [rule, change] : all) EXPECT_THAT(refusal_of(fits, change), HasSubstr(rule)) << rule;
  const auto without_weight_gradients = [](RunConfig& c) {  // which alone sum over tokens
    c.data.seq_length = 640;
    c.fp8.wgrad = false;
  };
  EXPECT_EQ(refusal_of(fits, without_weight_gradients), "no error");
  fits.fp8.recipe = "tensorwise";
  for (const auto& [rule, change] : all) EXPECT_EQ(refusal_of(fits, change), "no error") << rule;
  fits.fp8.recipe = "blockwise";
  fits.model.ffn_hidden_size = 200;  // one rank has all of a block, whatever its size
  fits.data.seq_length = 500;
  fits.parallel.tp = fits.parallel.cp = fits.parallel.world_size = 1;
  EXPECT_EQ(refusal_of(fits, [](RunConfig&) {}), "no error");
}

TEST(Fp8Rules, RefuseRanksWithPartsOfBlocksOf32) {
  RunConfig fits = fp8_run();
  fits.fp8.recipe = "mxfp8";
  fits.model.hidden_size = 128;
  fits.model.num_attention_heads = 4;
  fits.model.ffn_hidden_size = 64;
  fits.model.position_embedding_type = "rope";
  fits.model.gated_linear_unit = true;
  fits.data.seq_length = 128;
  fits.parallel.tp = fits.parallel.cp = 2;
  fits.parallel.world_size = 4;
  EXPECT_EQ(refusal_of(fits, [](RunConfig&) {}), "no error");
  EXPECT_THAT(refusal_of(fits, [](RunConfig& c) { c.model.ffn_hidden_size = 96; }),
              HasSubstr("fp8.recipe mxfp8 scales blocks of 32 features: of what parallel.tp divides, each rank must "
                        "have a multiple of 32.\n  got:  96 features of decoder.layers.0.mlp.linear_fc1, tp 2\n"
                        "  fix:  --fp8-recipe tensorwise"));
  EXPECT_THAT(refusal_of(fits, [](RunConfig& c) { c.data.seq_length = 192; }),
              HasSubstr("got:  192 tokens, cp 2\n  fix:  --seq-length 256"));
}

// ATen's check_mxfp8_recipe() and check_deepseek_recipe() take E4M3 alone.
TEST(Fp8Rules, RefuseGradientsInE5M2OnGpusWithScalesOfBlocks) {
  for (const char* recipe : {"blockwise", "mxfp8"}) {
    RunConfig config = fp8_run("hybrid");
    config.fp8.recipe = recipe;
    const auto on_a_gpu = [](RunConfig& c) { c.parallel.device = "cuda"; };
    EXPECT_EQ(refusal_of(config, [](RunConfig&) {}), "no error");
    EXPECT_THAT(refusal_of(config, on_a_gpu), HasSubstr("fix:  --fp8-format e4m3"));
    config.fp8.format = "e4m3";
    EXPECT_EQ(refusal_of(config, on_a_gpu), "no error");
  }
}

TEST(Fp8Units, AreThoseOfAdaAndLater) {
  constexpr std::int64_t kCuda13 = 13000;
  for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {8, 6}, {8, 7}}) {
    try {
      require_fp8_units({}, major, minor, kCuda13);
      ADD_FAILURE() << major << '.' << minor;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(concat("compute capability ", major, ".", minor)));
      EXPECT_THAT(error.what(), HasSubstr("fix:  --fp8-format none"));
    }
  }
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {12, 0}})
    EXPECT_NO_THROW(require_fp8_units({}, major, minor, kCuda13)) << major << '.' << minor;
}

// As ATen's _scaled_mm_v2 has them, by cuBLAS 12.9.
TEST(Fp8Units, OfBlocksAreThoseOfHopper) {
  const Fp8Recipe blocks{.scales = Fp8Scales::Block};
  EXPECT_NO_THROW(require_fp8_units(blocks, 9, 0, 12090));
  const auto refusal = [&](int major, int minor, std::int64_t cuda) -> std::string {
    try {
      require_fp8_units(blocks, major, minor, cuda);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refusal(8, 0, 13000), HasSubstr("fp8.format needs a GPU that multiplies 8-bit numbers"));
  for (const auto& [major, minor] : {std::pair{8, 9}, {10, 0}, {12, 0}}) {
    EXPECT_THAT(refusal(major, minor, 13000), HasSubstr("fp8.recipe blockwise needs a GPU of compute capability 9.0 "));
    EXPECT_THAT(refusal(major, minor, 13000), HasSubstr(concat("compute capability ", major, ".", minor)));
    EXPECT_THAT(refusal(major, minor, 13000), HasSubstr("fix:  --fp8-recipe tensorwise"));
  }
  EXPECT_THAT(refusal(9, 0, 12080), HasSubstr("got:  libtorch for CUDA 12.8"));
}

// As PyTorch's own tests have them (PLATFORM_SUPPORTS_MX_GEMM), by cuBLAS 12.8.
TEST(Fp8Units, OfBlocksOf32AreThoseOfBlackwellAndLater) {
  const Fp8Recipe blocks{.scales = Fp8Scales::Mx};
  for (const auto& [major, minor] : {std::pair{10, 0}, {10, 3}, {12, 0}}) {
    EXPECT_NO_THROW(require_fp8_units(blocks, major, minor, 12080));
    EXPECT_NO_THROW(require_fp8_units(blocks, major, minor, std::nullopt));
  }
  const auto refusal = [&](int major, int minor, std::int64_t cuda) -> std::string {
    try {
      require_fp8_units(blocks, major, minor, cuda, "DGX");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}}) {
    EXPECT_THAT(refusal(major, minor, 13000), HasSubstr("fp8.recipe mxfp8 needs a GPU of compute capability 10.0 "));
    EXPECT_THAT(refusal(major, minor, 13000), HasSubstr(concat("got:  DGX, compute capability ", major, ".", minor)));
    EXPECT_THAT(refusal(major, minor, 13000), HasSubstr("fix:  --fp8-recipe tensorwise"));
  }
  EXPECT_THAT(refusal(10, 0, 12060), HasSubstr("got:  libtorch for CUDA 12.6"));
}

TEST(MemoryPlan, CountsTheScalesAndNoPackedCopiesOfLayersInEightBits) {
  RunConfig config = fp8_run("none");
  config.train.dtype = "bf16";
  config.fp8.amax_history_len = 16;
  const MemoryPlan plain = memory_plan(resolve(config), 0, 0, 0, "avx512_bf16");
  config.fp8.format = "hybrid";
  const MemoryPlan with = memory_plan(resolve(config), 0, 0, 0, "avx512_bf16");
  // Of 8 layers three operands: 16 steps of magnitudes, the step's own, the scale and its inverse.
  EXPECT_EQ(with.optimizer_state - plain.optimizer_state, 4 * 8 * 3 * (16 + 3));
  EXPECT_EQ(with.parameters, plain.parameters);
  EXPECT_EQ(with.packed_weights, 0);
  EXPECT_GT(plain.packed_weights, 0);
  config.fp8.recipe = "tensorwise";  // magnitudes, and of the weight the scale and its inverse
  const MemoryPlan current = memory_plan(resolve(config), 0, 0, 0, "avx512_bf16");
  EXPECT_EQ(current.optimizer_state - plain.optimizer_state, 4 * 8 * (3 + 2));
  EXPECT_EQ(current.packed_weights, 0);
  for (const char* recipe : {"blockwise", "mxfp8"}) {
    config.fp8.recipe = recipe;
    const MemoryPlan blocks = memory_plan(resolve(config), 0, 0, 0, "avx512_bf16");
    EXPECT_EQ(blocks.optimizer_state, plain.optimizer_state);
    EXPECT_EQ(blocks.packed_weights, 0);
  }
}

}  // namespace
}  // namespace megatron::plan
