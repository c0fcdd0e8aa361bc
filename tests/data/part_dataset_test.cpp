#include "megatron/data/part_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megatron/data/run_blends.h"
#include "megatron/data/samples/blended_dataset.h"
#include "tests/data/byte_tokenizer.h"
#include "tests/data/part_verdict.h"
#include "tests/data/support.h"

namespace megatron::data {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class MegatronBlends : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kSharedGolden)) GTEST_SKIP() << "no " << kSharedGolden;
  }
};

std::vector<std::int64_t> elements(const NpyArray& array) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

Blend blend_of(const json& prefixes, const json& weights) {
  Blend blend;
  for (const std::string prefix : prefixes) blend.prefixes.push_back(kSharedGolden + "indexed/" + prefix);
  if (!weights.is_null()) blend.weights = weights.get<std::vector<double>>();
  return blend;
}

/// The parts of a golden case, with what the package made of each.
std::vector<std::pair<PartSpec, json>> parts_of(const json& settings, const std::string& cache) {
  constexpr std::array kWhole = {"1,0,0", "0,1,0", "0,0,1"};
  std::vector<std::pair<PartSpec, json>> parts;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto part = static_cast<SplitPart>(i);
    if (!settings["splits"].contains(split_part_name(part))) continue;
    PartSpec spec{.part = part, .cache_folder = cache};
    if (settings.contains("blend_per_split")) {
      const json& own = settings["blend_per_split"][i];
      spec.blend = blend_of(own["prefixes"], own["weights"]);
      spec.split = kWhole[i];
    } else {
      spec.blend = blend_of(settings["prefixes"], settings["weights"]);
      spec.split = settings["split"];
    }
    spec.index.seq_length = settings["sequence_length"];
    spec.index.seed = settings["seed"];
    if (!settings["sizes"][i].is_null()) spec.index.num_samples = settings["sizes"][i].get<std::int64_t>();
    parts.emplace_back(spec, settings["splits"][split_part_name(part)]);
  }
  return parts;
}

TEST_P(MegatronBlends, HaveTheSameOrderAndTheSameSamples) {
  const std::string folder = kSharedGolden + "blend/" + GetParam() + "/";
  TemporaryFolder cache;
  for (const auto& [spec, info] : parts_of(json::parse(read_bytes(folder + "case.json")), cache.path())) {
    const auto dataset = open_part(spec, {});
    const std::string stem = folder + split_part_name(spec.part);
    EXPECT_EQ(dataset->size(), info["length"]) << stem;
    const auto* const blend = dynamic_cast<const BlendedDataset*>(dataset.get());
    ASSERT_EQ(blend != nullptr, std::filesystem::exists(stem + ".dataset_index.npy")) << stem;
    if (blend == nullptr) continue;
    std::vector<std::int64_t> sets, samples;
    for (std::int64_t i = 0; i < blend->size(); ++i) {
      sets.push_back(blend->place_of(i).set);
      samples.push_back(blend->place_of(i).sample);
    }
    EXPECT_EQ(sets, elements(NpyArray(stem + ".dataset_index.npy"))) << stem;
    EXPECT_EQ(samples, elements(NpyArray(stem + ".dataset_sample_index.npy"))) << stem;
    std::vector<std::int64_t> tokens;
    for (const std::int64_t id : info["dumped"]) {
      const std::size_t begin = tokens.size();
      tokens.resize(begin + static_cast<std::size_t>(dataset->seq_length()));
      dataset->get(id, {.tokens = std::span(tokens).subspan(begin)});
    }
    EXPECT_EQ(tokens, elements(NpyArray(stem + ".tokens.npy"))) << stem;
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, MegatronBlends, testing::Values("weighted", "unweighted", "per_split"),
                         [](const auto& test) { return std::string(test.param); });

TEST(RunBlends, AreNamedInOneWay) {
  config::DataConfig data;
  EXPECT_THROW(read_blends(data), ConfigError);
  data.data_path = {"0.5", "A", "0.5", "B"};
  EXPECT_FALSE(read_blends(data).of_its_own);
  EXPECT_THAT(read_blends(data).parts[2].value().prefixes, ElementsAre("A", "B"));
  data.valid_data_path = {"C"};
  EXPECT_THROW(read_blends(data), ConfigError);
  data.data_path.clear();
  EXPECT_THROW(read_blends(data), ConfigError) << "nothing to train on";
  data.train_data_path = {"A"};
  EXPECT_TRUE(read_blends(data).of_its_own);
  EXPECT_THAT(read_blends(data).parts[1].value().prefixes, ElementsAre("C"));
  EXPECT_FALSE(read_blends(data).parts[2]);
  data.per_split_data_args_path = "splits.json";
  EXPECT_THROW(read_blends(data), ConfigError);
}

TEST(PartDataset, SetsOfOneNameInSeveralFoldersAreChangedByNumbersOfTheirOwnWhereverTheyLie) {
  const auto samples_in = [](TemporaryFolder& folder, const std::vector<std::string>& names, std::size_t place) {
    for (const std::string& name : names) {
      std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
      IndexedDatasetWriter writer(folder / name, DType::I32);
      std::vector<std::int32_t> letters(400);
      for (std::size_t i = 0; i < letters.size(); ++i) letters[i] = 'a' + static_cast<std::int32_t>(i % 26);
      writer.add_document(letters, std::vector<std::int32_t>{400});
      writer.publish();
    }
    PartSpec spec{.place = place, .split = "1", .tokenizer = byte_tokenizer({"<p>", "<m>", "<s>", "<pad>", "<eod>"})};
    for (const std::string& name : names) spec.blend.prefixes.push_back(folder / name);
    spec.index = {.seq_length = 399, .seed = 3};
    spec.fill_in_middle = {.rate = 1, .prefix = 256, .middle = 257, .suffix = 258, .pad = 259, .eod = 260};
    const auto part = open_part(spec, {});
    std::vector<std::vector<std::int64_t>> samples;
    for (std::int64_t i = 0; i < part->size(); ++i) {
      samples.emplace_back(399);
      part->get(i, {.tokens = samples.back()});
    }
    std::ranges::sort(samples);
    return samples;
  };
  TemporaryFolder here, there;
  const auto samples = samples_in(here, {"a/x", "b/x"}, 0);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_NE(samples[0], samples[1]);
  EXPECT_EQ(samples_in(there, {"c/x", "d/y"}, 0), samples) << "names do not matter, places do";
  TemporaryFolder first, second;
  EXPECT_NE(samples_in(first, {"x"}, 0), samples_in(second, {"x"}, 1));
}

TEST(PartDataset, SaysBeforeAnythingIsBuiltWhatAnyOfItsSetsLacks) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "pair", DType::U16);
  for (int d = 0; d < 20; ++d) writer.add_document(std::vector<std::int32_t>{1, 2, 3}, std::vector<std::int32_t>{3});
  writer.publish();
  PartSpec spec{.blend = {.prefixes = {folder / "pair", folder / "none"}, .weights = {{1, 1}}}, .split = "9,1,0"};
  spec.index = {.seq_length = 4, .num_samples = 5};
  const auto error = [&] {
    try {
      check_part(spec, [](const auto&) {});
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(), HasSubstr(folder / "none"));
  spec.blend.prefixes[1] = folder / "pair";
  EXPECT_EQ(error(), "");
  spec.part = SplitPart::Test;
  EXPECT_THAT(error(), HasSubstr("test part of 9,1,0"));
  spec.part = SplitPart::Train;
  spec.index.num_samples.reset();
  EXPECT_THAT(error(), HasSubstr("data.full_validation"));
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
}

/// What check_part() throws or says of sets of one document with so many tokens each.
std::string verdict_on(const std::vector<std::int32_t>& lengths, PartSpec spec) {
  TemporaryFolder folder;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    spec.blend.prefixes.push_back(folder / std::to_string(i));
    IndexedDatasetWriter writer(spec.blend.prefixes.back(), DType::U16);
    writer.add_document(std::vector<std::int32_t>(static_cast<std::size_t>(lengths[i]), 1),
                        std::vector<std::int32_t>{lengths[i]});
    writer.publish();
  }
  spec.split = "1";
  spec.index.seq_length = 8;
  return verdict_of(spec);
}

TEST(PartDataset, RefusesSetsReadOnceThatHaveNoSampleBetweenThem) {
  const PartSpec some{.index = {.num_samples = 5}}, all;
  EXPECT_THAT(verdict_on({8, 3}, some), AllOf(HasSubstr("a blend without weights"), HasSubstr("/0 has 8 tokens; ")));
  EXPECT_THAT(verdict_on({8}, all), HasSubstr("data.full_validation"));
  EXPECT_EQ(verdict_on({8}, some), "") << "it is repeated";
  EXPECT_EQ(verdict_on({9}, all), "");
  EXPECT_EQ(verdict_on({8, 8}, {.index = {.num_samples = 0}}), "") << "nobody reads it";
  EXPECT_EQ(verdict_on({2, 5}, {.packed = true}), "");
  EXPECT_THAT(verdict_on({1}, {.packed = true}), HasSubstr("a document of two tokens"));
}

TEST(PartDataset, WarnsOfASetOfWhichNothingIsRead) {
  const std::string said = verdict_on({9, 8, 20}, {.index = {.num_samples = 5}});
  EXPECT_THAT(said, AllOf(HasSubstr("warning: "), HasSubstr("/1 has 8 tokens, too few for a sample")));
  EXPECT_THAT(said, Not(HasSubstr("/0 has")));
  EXPECT_THAT(verdict_on({9, 8}, {.blend = {.prefixes = {}, .weights = {{1, 1}}}, .index = {.num_samples = 5}}), "");
}

}  // namespace
}  // namespace megatron::data
