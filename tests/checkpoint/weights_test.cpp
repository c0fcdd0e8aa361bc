#include "megatron/checkpoint/weights.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/checkpoint/difference.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "tests/checkpoint/support.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

plan::ModelShape small_shape() {
  plan::ModelShape shape;
  shape.num_layers = 1;
  shape.hidden = 12;
  shape.num_heads = 3;
  shape.ffn_hidden = 24;
  shape.vocab = 10;
  shape.padded_vocab = 12;
  shape.max_positions = 8;
  return shape;
}

parallel::ParameterStore store_of(const plan::ModelShape& shape, int tp, int tp_rank, at::ScalarType dtype,
                                  std::uint64_t seed) {
  const auto specs = plan::model_parameters(shape, tp, tp_rank);
  return {specs, plan::buffer_layout(specs, 0), dtype, at::kCPU, seed, parallel::ParameterStore::Gradients::None};
}

std::vector<ShardedTensor> tensors_of(const parallel::ParameterStore& store, const plan::ModelShape& shape) {
  std::vector<ShardedTensor> tensors;
  for (const auto& parameter : store.all())
    for (const ShardedTensor& tensor :
         model_tensor(parameter->spec.name, parameter->spec, shape, parameter->value.detach()))
      tensors.push_back(tensor);
  return tensors;
}

class Weights : public testing::Test {
 protected:
  const plan::ModelShape shape = small_shape();
  const TemporaryFolder folder;
  const parallel::ParameterStore drawn = store_of(shape, 1, 0, at::kFloat, 1);
};

TEST_F(Weights, FillModelsOfAnySplitAndDtype) {
  save(folder.path(), 5, tensors_of(drawn, shape), {}, {});
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int tp : {1, 3}) {
      for (int rank = 0; rank < tp; ++rank) {
        const auto loaded = store_of(shape, tp, rank, dtype, 2), same = store_of(shape, tp, rank, at::kFloat, 1);
        EXPECT_TRUE(load_weights(*open_checkpoint(folder.path()), loaded, shape).empty());
        const auto got = tensors_of(loaded, shape), wanted = tensors_of(same, shape);
        for (std::size_t k = 0; k < got.size(); ++k)
          EXPECT_TRUE(at::equal(got[k].data, wanted[k].data.to(dtype)))
              << got[k].name << " tp " << tp << " rank " << rank;
      }
    }
  }
}

TEST_F(Weights, RaiseTheVersionsOfWhatTheyFillSoThatPackedCopiesAreMadeAnew) {
  save(folder.path(), 5, tensors_of(drawn, shape), {}, {});
  const auto filled = store_of(shape, 1, 0, at::kFloat, 2);
  std::vector<std::int64_t> before;
  const auto expect_raised = [&](const char* by) {
    for (std::size_t k = 0; k < before.size(); ++k)
      EXPECT_GT(filled.all()[k]->value._version(), before[k]) << filled.all()[k]->spec.name << " by " << by;
    before.clear();
    for (const auto& parameter : filled.all()) before.push_back(parameter->value._version());
  };
  expect_raised("nothing");
  load_weights(*open_checkpoint(folder.path()), filled, shape);
  expect_raised("load_weights");
  load(folder.path(), tensors_of(filled, shape));
  expect_raised("load");
}

TEST_F(Weights, OfOtherNamesAreAnErrorThatListsThemOrAReport) {
  auto tensors = tensors_of(drawn, shape);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "decoder.final_layernorm.weight"; });
  tensors.push_back({"adapter.weight", {2}, {0}, at::full({2}, 1.0)});
  tensors.push_back({"optimizer.exp_avg.adapter.weight", {2}, {0}, at::full({2}, 1.0)});
  save(folder.path(), 5, tensors, {}, {});
  const auto source = open_checkpoint(folder.path());
  const auto loaded = store_of(shape, 1, 0, at::kFloat, 2), fresh = store_of(shape, 1, 0, at::kFloat, 2);
  try {
    load_weights(*source, loaded, shape);
    FAIL() << "loaded";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("missing: \"decoder.final_layernorm.weight\""));
    EXPECT_THAT(e.what(), HasSubstr("unexpected: \"adapter.weight\""));
    EXPECT_THAT(e.what(), Not(HasSubstr("exp_avg")));
  }
  loaded.get("decoder.final_layernorm.weight")->value.detach().fill_(7);
  const WeightReport report = load_weights(*source, loaded, shape, /*strict=*/false);
  EXPECT_THAT(report.missing, ElementsAre("decoder.final_layernorm.weight"));
  EXPECT_THAT(report.unexpected, ElementsAre("adapter.weight"));
  EXPECT_EQ(loaded.get("decoder.final_layernorm.weight")->value.min().item<float>(), 7) << "it stays as it was";
  EXPECT_TRUE(at::equal(loaded.get("decoder.layers.0.mlp.linear_fc1.weight")->value,
                        drawn.get("decoder.layers.0.mlp.linear_fc1.weight")->value));
}

TEST_F(Weights, OfAnotherShapeAreAnErrorEvenWhereNamesMayDiffer) {
  save(folder.path(), 5, tensors_of(drawn, shape), {}, {});
  plan::ModelShape wider = shape;
  wider.ffn_hidden = 36;
  const auto loaded = store_of(wider, 1, 0, at::kFloat, 2);
  try {
    load_weights(*open_checkpoint(folder.path()), loaded, wider, /*strict=*/false);
    FAIL() << "loaded";
  } catch (const ConfigError& e) {
    EXPECT_THAT(
        e.what(),
        HasSubstr("\"decoder.layers.0.mlp.linear_fc1.weight\" must have the shape [36, 12].\n  got:  [24, 12]"));
  }
}

TEST_F(Weights, ReshardedAreTheSameInAsManyFilesAndAnotherDtype) {
  auto tensors = tensors_of(drawn, shape);
  tensors.push_back({"optimizer.exp_avg.scalar", {}, {}, at::full({}, 3.0)});
  tensors.push_back({"optimizer.exp_avg.large", {3, 1 << 20}, {0, 0}, at::randn({3, 1 << 20})});
  save(folder.path() / "a", 5, tensors, {{"key", "value"}}, {});
  reshard(folder.path() / "a", folder.path() / "b", {.files = 3});
  EXPECT_EQ(verify(folder.path() / "b"), std::vector<std::string>{});
  const Manifest manifest = read_manifest(folder.path() / "b/iter_0000005");
  EXPECT_EQ(manifest.files.size(), 3u);
  EXPECT_EQ(manifest.metadata.at("key"), "value");
  std::int64_t compared = 0;
  EXPECT_TRUE(differences(folder.path() / "a", folder.path() / "b", 0, &compared).empty());
  EXPECT_EQ(compared, static_cast<std::int64_t>(tensors.size()));

  reshard(folder.path() / "b", folder.path() / "c", {.dtype = "BF16", .weights_only = true});
  const Reader half(folder.path() / "c/iter_0000005");
  EXPECT_EQ(half.find("optimizer.exp_avg.large"), nullptr);
  const auto& weight = drawn.get("decoder.layers.0.mlp.linear_fc1.weight")->value;
  const at::Tensor got = at::zeros({24, 12}, at::kBFloat16);
  half.read("decoder.layers.0.mlp.linear_fc1.weight", {{0, 0}, {24, 12}}, got);
  EXPECT_EQ(half.dtype("decoder.layers.0.mlp.linear_fc1.weight"), "BF16");
  EXPECT_TRUE(at::equal(got, weight.to(at::kBFloat16)));
  EXPECT_THROW(reshard(folder.path() / "a", folder.path() / "a", {}), ConfigError);
}

TEST_F(Weights, DifferencesAreCountedMeasuredAndPlaced) {
  const at::Tensor a = at::zeros({4, 3});
  const at::Tensor b = a.clone();
  b[2][1] = 0.5;
  b[3][0] = -0.25;
  save(folder.path() / "a", 1,
       {{"v", {4, 3}, {0, 0}, a}, {"same", {2}, {0}, at::full({2}, 1.0)}, {"x", {1}, {0}, at::full({1}, 1.0)}}, {}, {});
  save(folder.path() / "b", 1,
       {{"v", {4, 3}, {0, 0}, b}, {"same", {2}, {0}, at::full({2}, 1.0)}, {"y", {1}, {0}, at::full({1}, 1.0)}}, {}, {});
  const auto found = differences(folder.path() / "a", folder.path() / "b", 0);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].elements, 2);
  EXPECT_EQ(found[0].largest, 0.5);
  EXPECT_EQ(found[0].at, 7);
  EXPECT_EQ(found[1].what, "only in the first");
  EXPECT_EQ(found[2].what, "only in the second");
  EXPECT_EQ(differences(folder.path() / "a", folder.path() / "b", 0.3)[0].elements, 1);
}

TEST_F(Weights, WhatIsNoNumberInOneOfTwoDiffersWhateverTheTolerance) {
  const at::Tensor a = at::zeros({3}), b = at::zeros({3});
  a[0] = b[0] = b[2] = std::nan("");
  save(folder.path() / "a", 1, {{"v", {3}, {0}, a}}, {}, {});
  save(folder.path() / "b", 1, {{"v", {3}, {0}, b}}, {}, {});
  const auto found = differences(folder.path() / "a", folder.path() / "b", 1e9);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].elements, 1);
  EXPECT_EQ(found[0].not_finite, 1);
  EXPECT_EQ(found[0].at, 2);
}

TEST_F(Weights, WhatIsNotFiniteHidesNoDifferenceOfNumbers) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto tensor = [](const std::vector<double>& v) { return at::tensor(v, at::kDouble); };
  const std::vector<double> a = {nan, 1, 8, inf, 2, inf, inf}, b = {0, 2, 4, 3, -inf, -inf, inf};
  save(folder.path() / "a", 1, {{"v", {7}, {0}, tensor(a)}}, {}, {});
  save(folder.path() / "b", 1, {{"v", {7}, {0}, tensor(b)}}, {}, {});
  for (const double tolerance : {0.0, 3.0}) {
    const auto found = differences(folder.path() / "a", folder.path() / "b", tolerance);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].elements, tolerance == 0 ? 6 : 5);
    EXPECT_EQ(found[0].not_finite, 4);
    EXPECT_EQ(found[0].largest, 4);
    EXPECT_EQ(found[0].largest_relative, 0.5);
    EXPECT_EQ(found[0].at, 2);
  }
}

TEST(Candidates, AreWhatLatestNamesThenTheEarlierOnesNewestFirst) {
  const TemporaryFolder folder;
  for (const int iteration : {1, 2, 3, 4})
    save(folder.path(), iteration, {{"w", {1}, {0}, at::full({1}, 1.0)}}, {}, {});
  const auto names = [&](const fs::path& of) {
    std::vector<std::string> found;
    for (const fs::path& candidate : candidates(of)) found.push_back(candidate.filename());
    return found;
  };
  const auto is = [](auto... numbers) { return ElementsAre(iteration_name(numbers)...); };
  EXPECT_THAT(names(folder.path()), is(4, 3, 2, 1));
  std::ofstream(folder.path() / "latest") << "iter_0000003\n";
  EXPECT_THAT(names(folder.path()), is(3, 2, 1));
  EXPECT_THAT(names(folder.path() / "iter_0000002"), is(2));
  fs::remove(folder.path() / "latest");
  EXPECT_THAT(names(folder.path()), is(4, 3, 2, 1));
  EXPECT_TRUE(has_checkpoint(folder.path())) << "a lost `latest` is no reason to start over";
  EXPECT_FALSE(has_checkpoint(folder.path() / "nowhere"));
}

}  // namespace
}  // namespace megatron::checkpoint
