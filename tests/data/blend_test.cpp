#include "megatron/data/index/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "megatron/data/samples/blended_dataset.h"
#include "megatron/data/samples/gpt_dataset.h"
#include "tests/data/support.h"

namespace megatron::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

/// The folder of goldens is the parameter.
class MegatronBlend : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << "no " << GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Goldens, MegatronBlend, testing::Values(kOwnGolden, kSharedGolden),
                         [](const auto& test) { return test.param == kOwnGolden ? "own" : "shared"; });

std::vector<std::int64_t> numbers_of(const NpyArray& array) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

struct Order {
  explicit Order(std::size_t size) : set(size), sample(size) {}
  operator BlendOrder() { return {set, sample}; }  // NOLINT: the spans of it
  std::vector<std::int16_t> set;
  std::vector<std::int64_t> sample;
};

TEST_P(MegatronBlend, HasTheSameOrderForEveryWeightsAndExhaustively) {
  for (const json& row : json::parse(read_bytes(GetParam() + "blend/helper_cases.json"))) {
    const std::string stem = GetParam() + "blend/" + row["name"].get<std::string>();
    const auto sets = numbers_of(NpyArray(stem + ".dataset_index.npy"));
    Order order(sets.size());
    if (row.contains("sizes")) {
      fill_exhaustive_order(row["sizes"].get<std::vector<std::int64_t>>(), order);
    } else {
      const auto weights = normalize_weights(row["weights"].get<std::vector<double>>());
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_EQ(weights[i], std::strtod(row["normalized_hex"][i].get<std::string>().c_str(), nullptr)) << stem;
      fill_blend_order(weights, order);
    }
    EXPECT_TRUE(std::equal(sets.begin(), sets.end(), order.set.begin(), order.set.end())) << stem;
    EXPECT_EQ(order.sample, numbers_of(NpyArray(stem + ".dataset_sample_index.npy"))) << stem;
  }
}

TEST_P(MegatronBlend, AsksEachSetForTheSameNumberOfSamples) {
  for (const json& row : json::parse(read_bytes(GetParam() + "blend/sizes.json"))) {
    const auto weights = normalize_weights(row["weights"].get<std::vector<double>>());
    for (std::size_t part = 0; part < row["sizes"].size(); ++part) {
      const BlendPlan plan = plan_weighted_blend(weights, row["sizes"][part]);
      std::int64_t size = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        size += row["target"][i][part].get<std::int64_t>();
        EXPECT_EQ(plan.requests[i], row["built"][i][part].get<std::int64_t>()) << row.dump();
      }
      EXPECT_EQ(plan.size, size);
    }
  }
}

TEST(Blend, TakesWeightsAndPrefixesInTurnOrPrefixesAlone) {
  EXPECT_THAT(parse_blend({"A"}).prefixes, ElementsAre("A"));
  EXPECT_FALSE(parse_blend({"A", "B"}).weights);
  EXPECT_THAT(parse_blend({"A", "B"}).prefixes, ElementsAre("A", "B"));
  const Blend weighted = parse_blend({"30", "A", "0.7", "B"});
  EXPECT_THAT(weighted.prefixes, ElementsAre("A", "B"));
  EXPECT_THAT(weighted.weights.value(), ElementsAre(30, 0.7));
  EXPECT_THAT(parse_blend({"1", "A", "2"}).prefixes, ElementsAre("1", "A", "2")) << "an odd number has no weights";
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{},
                                                                                     {"0.3", "A", "B", "C"},
                                                                                     {"0", "A", "1", "B"},
                                                                                     {"-1", "A"},
                                                                                     {"nan", "A"},
                                                                                     {"inf", "A", "1", "B"},
                                                                                     {"1e308", "A", "1e308", "B"},
                                                                                     {"1e308", "A", "1e-300", "B"},
                                                                                     {"1e-320", "A", "1e-323", "B"}})
    EXPECT_THROW(parse_blend(wrong), ConfigError) << json(wrong);
}

TEST(Blend, IsReadFromFilesOfWordsAndOfJson) {
  TemporaryFolder folder;
  write_bytes(folder / "words", " 0.3 A\n\t0.7   B\n");
  EXPECT_THAT(read_blend_file(folder / "words").weights.value(), ElementsAre(0.3, 0.7));
  write_bytes(folder / "splits", R"({"train": ["0.3", "A", 0.7, "B"], "valid": ["C"], "test": null})");
  const auto blends = read_split_blends_file(folder / "splits");
  EXPECT_THAT(blends[0].value().prefixes, ElementsAre("A", "B"));
  EXPECT_THAT(blends[0]->weights.value(), ElementsAre(0.3, 0.7));
  EXPECT_THAT(blends[1].value().prefixes, ElementsAre("C"));
  EXPECT_FALSE(blends[2]);
  for (const char* wrong : {"", "[]", "{\"train\": 1}", "{\"trian\": [\"A\"]}", "{\"train\": [[]]}", "{",
                            R"({"train": ["A"], "train": ["B"]})"}) {
    write_bytes(folder / "splits", wrong);
    EXPECT_THROW(read_split_blends_file(folder / "splits"), ConfigError) << wrong;
  }
  write_bytes(folder / "splits", R"({"train": ["A\u0000B"]})");
  EXPECT_THROW(read_split_blends_file(folder / "splits"), ConfigError);
  write_bytes(folder / "words", std::string("1 A\0B", 5));
  EXPECT_THROW(read_blend_file(folder / "words"), ConfigError);
  write_bytes(folder / "words", " \n");
  EXPECT_THROW(read_blend_file(folder / "words"), ConfigError);
}

/// Samples that say which they are.
class Counting : public Dataset {
 public:
  Counting(std::int64_t set, std::int64_t size) : set_(set), size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t seq_length() const override { return 2; }
  SampleFields fields() const override { return {.loss_mask = set_ == 1}; }
  void get(std::int64_t i, const Sample& out) const override {
    check_spans(out, 2);
    out.tokens[0] = set_;
    out.tokens[1] = i;
  }
  std::string name_of(std::int64_t i) const override { return concat("set ", set_, ", sample ", i); }

 private:
  std::int64_t set_, size_;
};

std::vector<std::unique_ptr<const Dataset>> counting(const std::vector<std::int64_t>& sizes) {
  std::vector<std::unique_ptr<const Dataset>> sets;
  for (const std::int64_t size : sizes)
    sets.push_back(std::make_unique<Counting>(static_cast<std::int64_t>(sets.size()), size));
  return sets;
}

TEST(BlendedDataset, GivesEverySampleOfEverySetOnceWhereItIsExhaustive) {
  TemporaryFolder folder;
  const BlendedDataset blend(counting({5, 0, 11}),
                             {.weights = {5, 0, 11}, .cache_folder = folder.path(), .name = "train"}, {});
  std::vector<std::vector<std::int64_t>> seen(3);
  for (std::int64_t i = 0; i < blend.size(); ++i) {
    std::array<std::int64_t, 2> tokens{};
    blend.get(i, {.tokens = tokens});
    EXPECT_EQ(blend.name_of(i), concat("set ", tokens[0], ", sample ", tokens[1]));
    seen[static_cast<std::size_t>(tokens[0])].push_back(tokens[1]);
  }
  for (const std::size_t set : {0, 1, 2}) {
    std::vector<std::int64_t> all(set == 0 ? 5 : set == 1 ? 0 : 11);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen[set], all);
  }
  EXPECT_TRUE(blend.fields().loss_mask);
  EXPECT_FALSE(blend.fields().first_key);
  EXPECT_THROW(blend.get(16, {}), std::out_of_range);
}

TEST(BlendedDataset, RefusesToTakeMoreOfASetThanItHas) {
  TemporaryFolder folder;
  EXPECT_THROW(BlendedDataset(counting({5, 5}), {.weights = {0.9, 0.1}, .size = 10, .cache_folder = folder.path()}, {}),
               ConfigError);
}

TEST(BlendedDataset, ChecksEveryEntryOfTheFilesItUses) {
  TemporaryFolder folder;
  const auto open = [&] {
    return BlendedDataset(counting({6, 6}), {.weights = {1, 1}, .size = 8, .cache_folder = folder.path()}, {});
  };
  open();
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    if (file.path().extension() != ".npy") continue;
    const std::string good = read_bytes(file.path());
    std::string bad = good;
    std::fill(bad.begin() + 128, bad.end(), '\x7F');
    write_bytes(file.path(), bad);
    EXPECT_THROW(open().place_of(3), ConfigError) << file.path();
    write_bytes(file.path(), good);
  }
  EXPECT_EQ(open().place_of(0).set, 0);
}

}  // namespace
}  // namespace megatron::data
