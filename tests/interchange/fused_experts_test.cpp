#include "megatron/interchange/hugging_face/fused_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <memory>

#include "tests/interchange/in_memory.h"
#include "tests/interchange/support.h"

// Experts in one tensor, and each in its own; blocks of four bits by their definition.
namespace megatron::interchange {
namespace {

constexpr std::int64_t kExperts = 3, kHidden = 6, kFeatures = 5;

std::shared_ptr<const InMemory> fused_folder() {
  return std::make_shared<const InMemory>(
      std::map<std::string, at::Tensor>{{"a.experts.gate_up_proj", at::randn({kExperts, kHidden, 2 * kFeatures})},
                                        {"a.experts.gate_up_proj_bias", at::randn({kExperts, 2 * kFeatures})},
                                        {"a.experts.down_proj", at::randn({kExperts, kFeatures, kHidden})},
                                        {"a.experts.down_proj_bias", at::randn({kExperts, kHidden})},
                                        {"a.router.weight", at::randn({kExperts, kHidden})}});
}

at::Tensor piece(const checkpoint::WeightSource& source, const std::string& name, const checkpoint::Box& box) {
  at::Tensor into = at::empty(box.shape, at::kFloat);
  source.read(name, box, into);
  return into;
}

TEST(FusedExperts, AreReadOneByOneInTurns) {
  const auto folder = fused_folder();
  const auto apart = apart_experts(folder);
  EXPECT_EQ(apart->tensors().size(), 1 + kExperts * 6);
  EXPECT_EQ(apart->shape("a.experts.gate_up_proj"), nullptr);
  const at::Tensor both = read_whole(*folder, "a.experts.gate_up_proj"),
                   down = read_whole(*folder, "a.experts.down_proj"),
                   biases = read_whole(*folder, "a.experts.gate_up_proj_bias");
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = "a.experts." + std::to_string(e);
    for (std::int64_t f = 0; f < kFeatures; ++f) {  // column 2f of their inputs x outputs is gate f, the next value f
      EXPECT_TRUE(read_whole(*apart, expert + ".gate_proj.weight")[f].equal(both[e].select(1, 2 * f)));
      EXPECT_TRUE(read_whole(*apart, expert + ".up_proj.weight")[f].equal(both[e].select(1, 2 * f + 1)));
      EXPECT_TRUE(read_whole(*apart, expert + ".gate_proj.bias")[f].equal(biases[e][2 * f]));
      EXPECT_TRUE(read_whole(*apart, expert + ".up_proj.bias")[f].equal(biases[e][2 * f + 1]));
    }
    EXPECT_TRUE(read_whole(*apart, expert + ".down_proj.weight").equal(down[e].t()));
    const at::Tensor up = read_whole(*apart, expert + ".up_proj.weight");
    EXPECT_TRUE(piece(*apart, expert + ".up_proj.weight", {{1, 2}, {3, 4}}).equal(up.narrow(0, 1, 3).narrow(1, 2, 4)));
  }
}

TEST(FusedExperts, AreWrittenAsTheyWereRead) {
  const auto folder = fused_folder();
  const auto apart = apart_experts(folder);
  const auto again = fused_experts(*apart);
  expect_same(read_all(*again), read_all(*folder));
  const auto with = [&](const std::string& name, const at::Tensor& tensor) {
    std::map<std::string, at::Tensor> tensors{{"a.experts.0.down_proj.weight", at::zeros({2, 3})}, {name, tensor}};
    const InMemory source(tensors);
    return refusal([&] { fused_experts(source); });
  };
  EXPECT_EQ(with("a.experts.1.down_proj.weight", at::zeros({2, 3})), "");
  EXPECT_NE(with("a.experts.2.down_proj.weight", at::zeros({2, 3})), "") << "number 1 is missing";
  EXPECT_NE(with("a.experts.1.down_proj.weight", at::zeros({2, 4})), "");
}

TEST(FusedExperts, OfFourBitsHaveTheValuesOfTheirCodes) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const std::int64_t outputs = 4, groups = 2;
  const at::Tensor blocks = at::randint(0, 256, {kExperts, outputs, groups, 16}, at::kByte),
                   scales = at::randint(0, 253, {kExperts, outputs, groups}, at::kByte);
  const auto apart = apart_experts(
      std::make_shared<const InMemory>(std::map<std::string, at::Tensor>{{"m.down_proj_blocks", blocks},
                                                                         {"m.down_proj_scales", scales},
                                                                         {"m.gate_up_proj_blocks", blocks},
                                                                         {"m.gate_up_proj_scales", scales}}));
  EXPECT_EQ(apart->dtype("m.0.down_proj.weight"), "BF16");
  const auto value = [&](std::int64_t e, std::int64_t row, std::int64_t column) {
    const auto byte = blocks[e][row][column / 32][column % 32 / 2].item<std::int64_t>();
    const std::int64_t code = column % 2 == 0 ? byte & 15 : byte >> 4;
    const double magnitude = kMagnitudes[code & 7] * std::exp2(scales[e][row][column / 32].item<double>() - 127);
    return code >= 8 ? -magnitude : magnitude;
  };
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = "m." + std::to_string(e);
    const at::Tensor down = read_whole(*apart, expert + ".down_proj.weight", at::kBFloat16),
                     up = read_whole(*apart, expert + ".up_proj.weight", at::kDouble);
    ASSERT_EQ(down.sizes(), (std::vector<std::int64_t>{outputs, 64}));
    ASSERT_EQ(up.sizes(), (std::vector<std::int64_t>{outputs / 2, 64}));
    for (std::int64_t column = 0; column < 64; ++column) {
      for (std::int64_t row = 0; row < outputs; ++row)
        EXPECT_EQ(down[row][column].item<double>(), value(e, row, column));
      for (std::int64_t row = 0; row < outputs / 2; ++row)
        EXPECT_EQ(up[row][column].item<double>(), value(e, 2 * row + 1, column));
    }
    EXPECT_TRUE(piece(*apart, expert + ".up_proj.weight", {{1, 30}, {1, 5}})
                    .equal(up.to(at::kFloat).narrow(0, 1, 1).narrow(1, 30, 5)));
  }
}

TEST(FusedExperts, AreRefusedWhereTheyDoNotFit) {
  const auto refused = [](std::map<std::string, at::Tensor> tensors) {
    return refusal([&] { apart_experts(std::make_shared<const InMemory>(std::move(tensors))); });
  };
  const auto bytes = [](at::IntArrayRef sizes) { return at::zeros(sizes, at::kByte); };
  const std::string blocks = "m.down_proj_blocks", scales = "m.down_proj_scales";
  EXPECT_EQ(refused({{blocks, bytes({2, 4, 1, 16})}, {scales, bytes({2, 4, 1})}}), "");
  const auto expect = [&](std::map<std::string, at::Tensor> tensors, const std::vector<std::string>& words) {
    expect_refused([&] { apart_experts(std::make_shared<const InMemory>(std::move(tensors))); }, words);
  };
  const at::Tensor whole = bytes({2, 4, 1, 16}), of_whole = bytes({2, 4, 1});
  expect({{blocks, whole}}, {scales, "have a scale of each block", "none"});
  expect({{blocks, whole}, {scales, bytes({2, 4, 2})}}, {scales, "have a scale of each block", "[2, 4, 2]"});
  expect({{blocks, bytes({2, 4, 1, 8})}, {scales, of_whole}}, {blocks, "in 4 bits", "[2, 4, 1, 8]"});
  expect({{blocks, whole}, {scales, at::zeros({2, 4, 1})}}, {scales, "U8"});
  expect({{blocks, whole}, {scales, of_whole}, {"m.down_proj", at::zeros({2, 4, 3})}}, {"m.down_proj", "in one form"});
  for (const bool beside : {false, true}) {  // nothing would read them
    std::map<std::string, at::Tensor> tensors{{scales, of_whole}};
    if (beside) tensors["m.down_proj"] = at::zeros({2, 4, 3});
    expect(tensors, {scales, "have the blocks that it scales"});
  }
  expect({{"m.gate_up_proj", at::zeros({2, 3, 5})}}, {"m.gate_up_proj", "[2, 3, 5]"});  // a gate without a value
  expect({{"m.gate_up_proj", at::zeros({2, 6})}}, {"m.gate_up_proj", "[2, 6]"});
  expect({{"m.down_proj_bias", bytes({1 << 13, 0})}}, {"m.down_proj_bias", "8192"});  // experts of no bytes
  at::Tensor last = bytes({1, 1, 1});
  last.fill_(253);
  const auto apart = apart_experts(std::make_shared<const InMemory>(
      std::map<std::string, at::Tensor>{{blocks, bytes({1, 1, 1, 16})}, {scales, last}}));
  expect_refused([&] { read_whole(*apart, "m.0.down_proj.weight"); }, {"down_proj_scales", "252", "253"});
}

}  // namespace
}  // namespace megatron::interchange
