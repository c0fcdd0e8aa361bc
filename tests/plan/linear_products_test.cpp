#include "megatron/plan/cost/products/linear_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "megatron/base/error.h"
#include "megatron/plan/report.h"
#include "tests/plan/load_hardware.h"
#include "tests/testing/folders.h"

// What steps in 8 bits cost.
namespace megatron::plan {
namespace {

using testing::HasSubstr;

/// Products of bf16 at 10^12 operations a second and of 8 bits at twice that; the rest takes no time.
Hardware with_units() {
  Hardware hardware;
  hardware.name = "test";
  hardware.compute.bf16_tflops = 1;
  hardware.compute.fp8_tflops = 2;
  hardware.memory.bandwidth_gb_s = hardware.node.bandwidth_gb_s = hardware.cluster.bandwidth_gb_s = 1e12;
  hardware.software.whole_square = true;
  return hardware;
}

config::RunConfig in_8_bits(const std::string& format = "hybrid", const std::string& device = "cpu") {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 256;
  config.data.seq_length = 32;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8;
  config.train.dtype = "bf16";
  config.parallel.device = device;
  config.fp8.format = format;
  return config;
}

StepParts parts_of(const config::RunConfig& config, const Hardware& hardware) {
  return step_cost(resolve(config), hardware).parts;
}

TEST(Fp8Cost, OfProductsIsThatOfTheirPeak) {
  for (const char* device : {"cpu", "cuda"}) {
    const StepParts bf16 = parts_of(in_8_bits("none", device), with_units());
    const StepParts fp8 = parts_of(in_8_bits("hybrid", device), with_units());
    EXPECT_NEAR(fp8.matrices, bf16.matrices / 2, 1e-9 * bf16.matrices);
    EXPECT_DOUBLE_EQ(fp8.attention, bf16.attention);
    EXPECT_DOUBLE_EQ(fp8.output, bf16.output) << "is not computed in 8 bits";
  }
  config::RunConfig wide = in_8_bits();
  wide.fp8.first_last_layers_bf16 = true;
  wide.fp8.num_layers_at_end_in_bf16 = 0;
  EXPECT_NEAR(parts_of(wide, with_units()).matrices, parts_of(in_8_bits("none"), with_units()).matrices * 3 / 4, 1e-9)
      << "one of two layers is in 8 bits";
  const StepCost cost = step_cost(resolve(in_8_bits()), with_units());
  EXPECT_DOUBLE_EQ(cost.utilization, cost.model_flops / cost.step_s / 2e12);
  config::RunConfig config = in_8_bits();
  config.fp8.wgrad = false;  // a third of the products
  const double bf16 = parts_of(in_8_bits("none"), with_units()).matrices;
  EXPECT_NEAR(parts_of(config, with_units()).matrices, bf16 * (1 / 3.0 + 2 / 3.0 / 2), 1e-9 * bf16);
}

TEST(Fp8Cost, OfSizesThat16DoesNotDivideIsThatOfTheType) {
  config::RunConfig config = in_8_bits();
  config.data.seq_length = 20;  // 40 rows
  const double fp8 = parts_of(config, with_units()).matrices;
  config.fp8.format = "none";
  EXPECT_DOUBLE_EQ(fp8, parts_of(config, with_units()).matrices);
}

TEST(Fp8Cost, OfHardwareWithoutIsThatOfTheTypeOrRefused) {
  Hardware hardware = with_units();
  hardware.compute.fp8_tflops = 0;
  hardware.memory.bandwidth_gb_s = 1;
  const StepParts emulated = parts_of(in_8_bits(), hardware), bf16 = parts_of(in_8_bits("none"), hardware);
  EXPECT_DOUBLE_EQ(emulated.matrices, bf16.matrices);
  EXPECT_GT(emulated.elementwise, 2 * bf16.elementwise);
  try {
    parts_of(in_8_bits("hybrid", "cuda"), hardware);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the hardware test must multiply 8-bit numbers for fp8.format"));
    EXPECT_THAT(error.what(), HasSubstr("fix:  --fp8-format none"));
  }
}

// x [16, 64], w [32, 64], four microbatches: of a number of bf16 2 bytes are read and 1 is written, of dy 2. What
// blocks found of x and dy is put together by a launch.
TEST(Fp8Cost, CountsWhatIsDoneToOperands) {
  const ResolvedRun run = resolve(in_8_bits());
  const Hardware hardware = with_units();
  const LinearProducts linear(run, hardware);
  const Product product{1, 16, 32, 64};
  const double x = 16 * 64, w = 32 * 64, y = 16 * 32;
  const LinearCost forward = linear.forward(product);
  EXPECT_EQ(forward.moved_bytes, x * 3 + w * 3);
  EXPECT_EQ(forward.launches, 2 + 1);
  EXPECT_DOUBLE_EQ(forward.products_s, product.flops() / 2e12);
  const LinearCost input = linear.input_gradient(product);
  EXPECT_EQ(input.moved_bytes, y * 4 + w * 3);
  EXPECT_EQ(input.launches, 2 + 1);
  const LinearCost weight = linear.weight_gradient(product);
  // float32 of the units is copied once, and added three times.
  EXPECT_EQ(weight.moved_bytes, x * 3 + w * (8 + 3 * 12) / 4);
  EXPECT_EQ(weight.launches, 1 + 1);
  EXPECT_EQ(linear.of_step(product).moved_bytes, 0);
  EXPECT_EQ(linear.of_step(product).launches, 1);
  const Product part{1, 16, 24, 64};  // is emulated: read and written as bf16
  EXPECT_EQ(linear.forward(part).moved_bytes, (16 * 64 + 24 * 64) * 4);
  EXPECT_EQ(linear.weight_gradient(part).moved_bytes, (16 * 64 + 16 * 24) * 4);
}

// A tensor's own scale takes a pass over it by two launches, and one for the number; and ranks agree on it: of four
// linear layers in each of two layers over tp once per microbatch, on weights once per step, over cp in both
// directions.
TEST(Fp8Cost, OfATensorsOwnScaleIsThatOfAgreeingOnIt) {
  config::RunConfig config = in_8_bits();
  config.fp8.recipe = "tensorwise";
  const Product product{1, 16, 32, 64};
  {
    const Hardware hardware = with_units();
    const ResolvedRun run = resolve(config);
    const LinearProducts linear(run, hardware);
    EXPECT_EQ(linear.forward(product).launches, 3 + 2);
    EXPECT_EQ(linear.forward(product).moved_bytes, 16 * 64 * 5 + 32 * 64 * 3);
    EXPECT_EQ(linear.weight_gradient(product).launches, 1 + 1) << "both are known";
    EXPECT_EQ(linear.of_step(product).launches, 3);
    EXPECT_EQ(linear.of_step(product).moved_bytes, 32 * 64 * 2);
  }
  for (const bool by_tp : {true, false}) {
    Hardware hardware = with_units();
    hardware.ranks_per_node = 2;
    hardware.node.latency_us = 1;
    (by_tp ? config.parallel.tp : config.parallel.cp) = 2;
    (by_tp ? config.parallel.cp : config.parallel.tp) = 1;
    config.parallel.world_size = 2;
    config.fp8.recipe = "delayed";
    const double before = parts_of(config, hardware).tensor;
    config.fp8.recipe = "tensorwise";
    const double once = all_reduce_s(hardware, {.ranks = 2}, 4);
    ASSERT_GT(once, 0);
    const double times = by_tp ? 2 * (4 * 4 + 4) : 2 * 4 * 2 * 4;
    EXPECT_NEAR(parts_of(config, hardware).tensor - before, times * once, 1e-6 * before);
  }
}

// Each operand anew in each product, with its scales in the same pass. Nobody agrees on any, and no step begins with a
// look at weights.
TEST(Fp8Cost, OfBlocksIsThatOfTheirMagnitudesInEachProduct) {
  config::RunConfig config = in_8_bits();
  config.fp8.recipe = "blockwise";
  const Hardware hardware = with_units();
  const ResolvedRun run = resolve(config);
  const LinearProducts linear(run, hardware);
  const Product product{1, 256, 128, 384};
  const double x = 256 * 384, w = 128 * 384, y = 256 * 128;
  const LinearCost forward = linear.forward(product);
  EXPECT_DOUBLE_EQ(forward.products_s, product.flops() / 2e12);
  EXPECT_EQ(forward.moved_bytes, (x + w) * 3);
  EXPECT_EQ(forward.launches, 2);
  EXPECT_EQ(linear.input_gradient(product).moved_bytes, y * 4 + w * 3);
  EXPECT_EQ(linear.input_gradient(product).launches, 2);
  const LinearCost weight = linear.weight_gradient(product);
  EXPECT_EQ(weight.moved_bytes, x * 3 + w * (8 + 3 * 12) / 4);
  EXPECT_DOUBLE_EQ(weight.products_s, product.flops() / 2e12);
  EXPECT_EQ(linear.of_step(product).moved_bytes, 0);
  EXPECT_EQ(linear.of_step(product).launches, 0);
  EXPECT_FALSE(linear.agrees_on_scales());
  const Product part{1, 256, 64, 384};
  EXPECT_DOUBLE_EQ(linear.forward(part).products_s, part.flops() / 1e12) << "a part of a block is emulated";
  const Product few{1, 64, 128, 384};
  EXPECT_DOUBLE_EQ(linear.forward(few).products_s, few.flops() / 2e12);
  EXPECT_DOUBLE_EQ(linear.weight_gradient(few).products_s, few.flops() / 1e12) << "a part of a block of tokens is";
  const Product halves{1, 384, 128, 384};  // 192 tokens of each of two sequences
  EXPECT_DOUBLE_EQ(linear.forward(halves).products_s, halves.flops() / 2e12);
  EXPECT_DOUBLE_EQ(linear.weight_gradient(halves).products_s, halves.flops() / 1e12);
}

// Weights are cut along the sum of each product too.
TEST(Fp8Cost, OfBlocksOf32HasUnitsForMoreSizes) {
  config::RunConfig config = in_8_bits();
  config.fp8.recipe = "mxfp8";
  const Hardware hardware = with_units();
  const ResolvedRun run = resolve(config);
  const LinearProducts linear(run, hardware);
  const Product product{1, 64, 32, 96};
  const double x = 64 * 96, w = 32 * 96;
  EXPECT_DOUBLE_EQ(linear.forward(product).products_s, product.flops() / 2e12);
  EXPECT_EQ(linear.forward(product).moved_bytes, (x + w) * 3);
  EXPECT_EQ(linear.forward(product).launches, 2);
  EXPECT_EQ(linear.input_gradient(product).launches, 2);
  EXPECT_DOUBLE_EQ(linear.weight_gradient(product).products_s, product.flops() / 2e12) << "32 tokens of each sequence";
  const Product part{1, 64, 48, 96};
  EXPECT_DOUBLE_EQ(linear.forward(part).products_s, part.flops() / 1e12) << "a part of a block is emulated";
  const Product halves{1, 96, 32, 96};  // 48 tokens of each of two sequences
  EXPECT_DOUBLE_EQ(linear.weight_gradient(halves).products_s, halves.flops() / 1e12);
}

// What is predicted is what runs: hardware whose units do not multiply blocks is refused as a run on it would be.
TEST(Fp8Cost, OfBlocksIsThatOfHardwareThatMultipliesThem) {
  config::RunConfig config = in_8_bits("e4m3", "cuda");
  const auto refusal = [&](const std::string& recipe, const std::string& file) -> std::string {
    config.fp8.recipe = recipe;
    const Hardware hardware = load_hardware(tests_folder() + "/../configs/hardware/" + file + ".toml");
    try {
      step_cost(resolve(config), hardware);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  for (const char* both : {"dgx-h100", "b200"})
    for (const char* recipe : {"delayed", "tensorwise"}) EXPECT_EQ(refusal(recipe, both), "no error") << both;
  EXPECT_EQ(refusal("blockwise", "dgx-h100"), "no error");
  EXPECT_EQ(refusal("mxfp8", "b200"), "no error");
  EXPECT_THAT(refusal("blockwise", "b200"), HasSubstr("got:  DGX B200, compute capability 10.0"));
  EXPECT_THAT(refusal("mxfp8", "dgx-h100"), HasSubstr("got:  DGX H100, compute capability 9.0"));
  config.parallel.device = "cpu";
  EXPECT_EQ(refusal("blockwise", "b200"), "no error") << "there it is emulated";
}

TEST(Fp8Cost, IsLessThanThatOfBf16OnH100) {
  config::RunConfig config = in_8_bits("none", "cuda");
  config.model.hidden_size = 8192;
  config.model.num_attention_heads = 64;
  config.data.seq_length = 4096;
  const Hardware h100 = load_hardware(tests_folder() + "/../configs/hardware/dgx-h100.toml");
  const StepCost bf16 = step_cost(resolve(config), h100);
  config.fp8.format = "hybrid";
  const StepCost fp8 = step_cost(resolve(config), h100);
  EXPECT_LT(fp8.step_s, bf16.step_s);
  EXPECT_GT(fp8.step_s, 0.5 * bf16.step_s);
  EXPECT_GT(fp8.parts.elementwise, bf16.parts.elementwise);
  EXPECT_EQ(fp8.computed_flops, bf16.computed_flops);
  config.model.hidden_size = 512;  // casts take longer than what products save
  config.model.num_attention_heads = 8;
  const double small = step_cost(resolve(config), h100).step_s;
  config.fp8.format = "none";
  EXPECT_GT(small, step_cost(resolve(config), h100).step_s);
}

TEST(Fp8State, IsInTheReportAndOnAGpuWithoutWhatTheHostKeeps) {
  config::RunConfig config = in_8_bits();
  EXPECT_FALSE(report(resolve(in_8_bits("none"))).contains("fp8"));
  config.fp8.amax_history_len = 16;
  const auto on_cpu = report(resolve(config))["fp8"];
  EXPECT_EQ(on_cpu["format"], "hybrid");
  EXPECT_EQ(on_cpu["linear_layers"], 8);
  EXPECT_EQ(on_cpu["state_bytes"], 4 * 8 * 3 * (16 + 3));
  EXPECT_THAT(report_text(resolve(config)),
              HasSubstr("fp8 hybrid: products of 8 linear layers; their scales and magnitudes of 16 steps are"));
  config.parallel.device = "cuda";
  EXPECT_EQ(report(resolve(config))["fp8"]["state_bytes"], 4 * 8 * 3 * 2);
  config.fp8.recipe = "tensorwise";
  EXPECT_EQ(report(resolve(config))["fp8"]["state_bytes"], 4 * 8 * (3 + 2));
  EXPECT_THAT(report_text(resolve(config)),
              HasSubstr("products of 8 linear layers; scales of weights and the step's magnitudes are"));
  config.fp8.format = "e4m3";
  for (const char* recipe : {"blockwise", "mxfp8"}) {
    config.fp8.recipe = recipe;
    EXPECT_EQ(report(resolve(config))["fp8"]["state_bytes"], 0);
    EXPECT_THAT(report_text(resolve(config)),
                HasSubstr("products of 8 linear layers; scales of blocks are found in each, none is kept"));
  }
}

}  // namespace
}  // namespace megatron::plan
