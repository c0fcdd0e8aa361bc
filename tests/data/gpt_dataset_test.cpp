#include "megatron/data/samples/gpt_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/data/support.h"

namespace megatron::data {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::int64_t kEod = 50256;

struct Split {
  GptDatasetSpec spec;
  json info;
  std::string name;
};

/// The splits of a golden case in the folder `root`, with their settings.
std::vector<Split> splits_of(const std::string& root, const std::string& case_name, const json& settings,
                             const std::string& cache) {
  std::vector<Split> splits;
  for (const SplitPart part : {SplitPart::Train, SplitPart::Valid, SplitPart::Test}) {
    const json& info = settings["splits"][split_part_name(part)];
    if (info.is_null()) continue;
    GptDatasetSpec spec{.prefix = root + "indexed/" + settings["prefix"].get<std::string>(),
                        .split = settings["split"],
                        .part = part,
                        .cache_folder = cache};
    spec.index.seq_length = settings["sequence_length"];
    spec.index.seed = settings["seed"];
    if (!info["num_samples"].is_null()) spec.index.num_samples = info["num_samples"].get<std::int64_t>();
    spec.index.extra_token = settings.value("add_extra_token_to_sequence", true);
    spec.index.keep_partial =
        part == SplitPart::Valid && !settings.value("drop_last_partial_validation_sequence", true);
    splits.push_back({spec, info, root + "gpt/" + case_name + "/" + split_part_name(part)});
  }
  return splits;
}

/// The folder of goldens and the case.
class MegatronGpt : public testing::TestWithParam<std::pair<std::string, const char*>> {
 protected:
  void SetUp() override {
    const auto& [root, name] = GetParam();
    if (!std::filesystem::exists(root)) GTEST_SKIP() << "no " << root;
    settings_ = json::parse(read_bytes(root + "gpt/" + name + "/case.json"));
    splits_ = splits_of(root, name, settings_, cache_.path());
  }
  json settings_;
  std::vector<Split> splits_;
  TemporaryFolder cache_;
};

TEST_P(MegatronGpt, HasTheSameIndexFilesToTheByte) {
  for (const Split& split : splits_) {
    if (!std::filesystem::exists(split.name + ".document_index.npy")) {
      EXPECT_EQ(GetParam().first, kOwnGolden) << split.name << ": only its samples are kept there";
      continue;
    }
    GptDataset::build(split.spec);
    const GptIndexFiles files = gpt_index_files(split.spec, IndexedDataset(split.spec.prefix));
    EXPECT_EQ(read_bytes(files.document_index), read_bytes(split.name + ".document_index.npy")) << split.name;
    EXPECT_EQ(read_bytes(files.sample_index), read_bytes(split.name + ".sample_index.npy")) << split.name;
    EXPECT_EQ(read_bytes(files.shuffle_index), read_bytes(split.name + ".shuffle_index.npy")) << split.name;
  }
}

/// A golden array of int64 or float32, without looking at more of its header than its length.
template <class T>
std::vector<T> npy_values(const std::string& path) {
  const std::string bytes = read_bytes(path);
  const std::size_t begin = 10 + static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  std::vector<T> values((bytes.size() - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(T));
  return values;
}

/// All the samples that a golden file holds, one after another.
struct Samples {
  Samples(const GptDataset& data, const std::vector<std::int64_t>& ids) {
    const auto n = static_cast<std::size_t>(data.seq_length());
    for (auto* values : {&tokens, &labels, &position_ids}) values->resize(ids.size() * n);
    loss_mask.resize(ids.size() * n);
    first_key.resize(ids.size() * n);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto row = [&](auto& values) { return std::span(values).subspan(i * n, n); };
      data.get(ids[i], {.tokens = row(tokens),
                        .labels = row(labels),
                        .loss_mask = row(loss_mask),
                        .position_ids = row(position_ids),
                        .first_key = row(first_key)});
    }
  }
  std::vector<std::int64_t> tokens, labels, position_ids;
  std::vector<float> loss_mask;
  std::vector<std::int32_t> first_key;
};

/// Megatron's dense mask, 1 = hidden, from the first visible key of each position.
std::vector<std::uint8_t> hidden_of(const std::vector<std::int32_t>& first_key, std::size_t n) {
  std::vector<std::uint8_t> hidden;
  for (std::size_t row = 0; row < first_key.size(); ++row)
    for (std::size_t key = 0; key < n; ++key)
      hidden.push_back(key > row % n || static_cast<std::int32_t>(key) < first_key[row] ? 1 : 0);
  return hidden;
}

TEST_P(MegatronGpt, HasTheSameSamples) {
  const json plain = {{{"name", ""}}};
  for (const Split& split : splits_) {
    GptDataset::build(split.spec);
    for (const json& variant : settings_.value("variants", plain)) {
      const auto name = variant["name"].get<std::string>();
      const std::string tag = split.name + (name.empty() ? "" : "." + name);
      if (!std::filesystem::exists(tag + ".tokens.npy")) continue;
      const GptDataset data(split.spec, {.eod = kEod,
                                         .reset_position_ids = variant.value("reset_position_ids", false),
                                         .reset_attention_mask = variant.value("reset_attention_mask", false),
                                         .eod_mask_loss = variant.value("eod_mask_loss", false),
                                         .pad = split.info["pad"]});
      EXPECT_EQ(data.size(), split.info["samples"]);
      const std::vector<std::int64_t> ids = split.info["dumped"];
      const Samples samples(data, ids);
      EXPECT_EQ(samples.tokens, npy_values<std::int64_t>(tag + ".tokens.npy")) << tag;
      EXPECT_EQ(samples.labels, npy_values<std::int64_t>(tag + ".labels.npy")) << tag;
      EXPECT_EQ(samples.position_ids, npy_values<std::int64_t>(tag + ".position_ids.npy")) << tag;
      EXPECT_EQ(samples.loss_mask, npy_values<float>(tag + ".loss_mask.npy")) << tag;
      if (std::filesystem::exists(tag + ".attention_mask.npy")) {
        EXPECT_EQ(hidden_of(samples.first_key, static_cast<std::size_t>(data.seq_length())),
                  npy_values<std::uint8_t>(tag + ".attention_mask.npy"))
            << tag;
      }
      for (std::size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(data.sequences_of(ids[i]), split.info["documents_of_dumped"][i].get<std::vector<std::int64_t>>())
            << tag;
    }
  }
}
std::vector<std::pair<std::string, const char*>> golden_cases() {
  std::vector<std::pair<std::string, const char*>> cases = {{kOwnGolden, "sentences"}};
  for (const char* name : {"one_epoch", "masks", "three_epochs_separate", "three_epochs_joint", "threshold_below",
                           "threshold_above", "whole_epoch", "keep_partial", "no_extra_token", "pad_in_text",
                           "pad_is_eod", "int32_tokens", "sentences", "long_sequence"})
    cases.emplace_back(kSharedGolden, name);
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, MegatronGpt, testing::ValuesIn(golden_cases()), [](const auto& test) {
  return (test.param.first == kOwnGolden ? "own_" : "shared_") + std::string(test.param.second);
});

/// The folder of goldens is the parameter.
class MegatronHelpers : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << "no " << GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Goldens, MegatronHelpers, testing::Values(kOwnGolden, kSharedGolden),
                         [](const auto& test) { return test.param == kOwnGolden ? "own" : "shared"; });

TEST_P(MegatronHelpers, HaveTheSameSampleIndexForDocumentsOfAnyLengthZeroIncluded) {
  const json cases = json::parse(read_bytes(GetParam() + "gpt/sample_idx/cases.json"));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string stem = GetParam() + "gpt/sample_idx/" + std::to_string(i);
    const GptIndexSpec spec{.seq_length = cases[i]["sequence_length"],
                            .extra_token = cases[i]["extra"],
                            .keep_partial = !cases[i]["drop_last"]};
    GptIndexPlan plan;
    plan.samples = cases[i]["rows"].get<std::int64_t>() - 1;
    std::vector<std::int32_t> rows(static_cast<std::size_t>(2 * plan.samples + 2));
    const auto documents = npy_values<std::int32_t>(stem + ".document_index.npy"),
               sizes = npy_values<std::int32_t>(stem + ".sizes.npy");
    fill_sample_index(spec, plan, documents, std::as_bytes(std::span(sizes)), rows);
    EXPECT_EQ(rows, npy_values<std::int32_t>(stem + ".sample_index.npy")) << i;
  }
}

TEST_P(MegatronHelpers, HaveTheSameRangesForEverySplit) {
  for (const json& row : json::parse(read_bytes(GetParam() + "gpt/splits.json"))) {
    const auto ranges = split_ranges(row["split"], row["count"]);
    for (std::size_t i = 0; i < 3; ++i) {
      const json& expected = row["ranges"][i];
      EXPECT_EQ(ranges[i].size(),
                expected.is_null() ? 0 : expected[1].get<std::int64_t>() - expected[0].get<std::int64_t>());
      if (ranges[i].size() > 0) {
        EXPECT_EQ(ranges[i].first, expected[0]) << row["split"] << " of " << row["count"];
      }
    }
  }
}

TEST(Split, RefusesWhatIsNoSplit) {
  for (const char* split : {"", "0,0,0", "1,-1,0", "1,2,3,4", "a,b", "1;2", "nan,1", "inf,1", "1e3,1", "9,1x"})
    EXPECT_THROW(split_ranges(split, 100), ConfigError) << split;
}

TEST(GptIndexPlan, CountsAPartialSampleExactlyWhereMegatronsFloatsDoNot) {
  // 16,777,218 tokens at 16: 1,048,576.06 samples; in 32-bit floats one fewer.
  const GptIndexPlan plan = plan_gpt_index({.seq_length = 16, .keep_partial = true}, 16777218);
  EXPECT_EQ(plan.samples, 1048577);
}

TEST(GptIndexPlan, AlwaysHoldsTheSamplesAskedAndNoEpochTooMany) {
  for (std::int64_t tokens = 1; tokens < 40; ++tokens)
    for (std::int64_t seq = 1; seq < 12; ++seq)
      for (std::int64_t wanted = 1; wanted < 30; ++wanted) {
        const GptIndexPlan plan = plan_gpt_index({.seq_length = seq, .num_samples = wanted}, tokens);
        EXPECT_GE(plan.samples, wanted);
        EXPECT_TRUE(plan.epochs == 1 || (plan.epochs - 1) * tokens < wanted * seq + 1);
      }
}

TEST(GptIndexPlan, RefusesNumbersThatOverflow) {
  EXPECT_THROW(plan_gpt_index({.seq_length = 0}, 10), ConfigError);
  EXPECT_THROW(plan_gpt_index({.seq_length = 8, .num_samples = -1}, 10), ConfigError);
  EXPECT_THROW(plan_gpt_index({.seq_length = 8, .num_samples = 1}, 0), ConfigError);
  EXPECT_THROW(plan_gpt_index({.seq_length = 8, .num_samples = INT64_MAX / 4}, 10), ConfigError);
  EXPECT_THROW(plan_gpt_index({.seq_length = kMaxSample + 1}, 10), ConfigError);
  EXPECT_EQ(plan_gpt_index({.seq_length = kMaxSample, .num_samples = 1}, 10).samples, 1);
  EXPECT_THROW(plan_gpt_index({.seq_length = 8, .seed = std::uint64_t{1} << 32}, 10), ConfigError);
}

/// A pair of `documents` documents; document d has d % 5 + 1 tokens, all of value d, and an end of document.
void write_pair(const std::string& prefix, int documents) {
  IndexedDatasetWriter writer(prefix, DType::U16);
  for (int d = 0; d < documents; ++d) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(d % 5 + 1), d);
    tokens.push_back(9999);
    writer.add_document(tokens, std::vector<std::int32_t>{static_cast<std::int32_t>(tokens.size())});
  }
  writer.publish();
}

GptDatasetSpec small_spec(const TemporaryFolder& folder) {
  GptDatasetSpec spec{.prefix = folder / "pair", .split = "8,1,1"};
  spec.index.seq_length = 7;
  spec.index.num_samples = 40;
  return spec;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(GptDatasetCache, IsFoundAgainAndChangesItsNameWithAllThatDecidesTheOrder) {
  TemporaryFolder folder;
  write_pair(folder / "pair", 50);
  const GptDatasetSpec spec = small_spec(folder);
  const auto name = [&](const auto& change) {
    GptDatasetSpec changed = spec;
    change(changed);
    return gpt_index_files(changed, IndexedDataset(changed.prefix)).sample_index;
  };
  const std::string original = name([](auto&) {});
  EXPECT_THAT(original, HasSubstr(folder.path() + "/cache/GPTDataset_indices/"));
  EXPECT_EQ(original, name([](auto&) {}));
  EXPECT_NE(original, name([](auto& s) { s.split = "7,2,1"; }));
  EXPECT_NE(original, name([](auto& s) { s.part = SplitPart::Valid; }));
  EXPECT_NE(original, name([](auto& s) { s.index.seed = 5; }));
  EXPECT_NE(original, name([](auto& s) { s.index.seq_length = 8; }));
  EXPECT_NE(original, name([](auto& s) { s.index.num_samples = 41; }));
  EXPECT_NE(original, name([](auto& s) { s.index.num_samples.reset(); }));
  EXPECT_NE(original, name([](auto& s) { s.index.extra_token = false; }));
  EXPECT_NE(original, name([](auto& s) { s.index.keep_partial = true; }));
  write_pair(folder / "pair", 51);
  EXPECT_NE(original, name([](auto&) {}));
}

TEST(GptDatasetCache, IsNotBuiltTwice) {
  TemporaryFolder folder;
  write_pair(folder / "pair", 50);
  const GptDatasetSpec spec = small_spec(folder);
  GptDataset::build(spec);
  const std::string file = gpt_index_files(spec, IndexedDataset(spec.prefix)).shuffle_index;
  std::string marked = read_bytes(file);
  std::swap(marked[marked.size() - 4], marked[marked.size() - 8]);
  write_bytes(file, marked);
  GptDataset::build(spec);
  EXPECT_EQ(read_bytes(file), marked);
  std::filesystem::remove(file);
  GptDataset::build(spec);
  EXPECT_NE(read_bytes(file), marked);
}

TEST(GptDataset, RefusesAnEmptySplitThatSamplesAreAskedOf) {
  TemporaryFolder folder;
  write_pair(folder / "pair", 3);
  GptDatasetSpec spec = small_spec(folder);
  spec.part = SplitPart::Test;
  spec.split = "969,30,1";
  EXPECT_THAT(error_of([&] { GptDataset::build(spec); }), HasSubstr("the test part of 969,30,1 over 3 sequences"));
}

TEST(GptDataset, RefusesAnIndexThatTheDiskCannotHoldBeforeItWritesOne) {
  TemporaryFolder folder;
  write_pair(folder / "pair", 50);
  const GptIndexFiles files{folder / "d.npy", folder / "s.npy", folder / "x.npy"};
  const GptIndexSpec spec{.seq_length = 1, .num_samples = std::int64_t{1} << 44};
  EXPECT_THAT(error_of([&] {
                build_gpt_index(IndexedDataset(folder / "pair"), {0, 50}, spec, files);
              }),
              testing::AllOf(HasSubstr("the disk must hold the index"), HasSubstr(folder.path())));
  for (const std::string& file : {files.document_index, files.sample_index, files.shuffle_index})
    EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(GptDataset, ResetsNeedAnEndOfDocumentToken) {
  TemporaryFolder folder;
  write_pair(folder / "pair", 50);
  const GptDatasetSpec spec = small_spec(folder);
  GptDataset::build(spec);
  EXPECT_THROW(GptDataset(spec, {.reset_position_ids = true}), ConfigError);
}

TEST(GptDataset, ChecksEveryEntryOfTheIndexFilesItUses) {
  TemporaryFolder folder;
  write_pair(folder / "pair", 50);
  const GptDatasetSpec spec = small_spec(folder);
  GptDataset::build(spec);
  const GptIndexFiles files = gpt_index_files(spec, IndexedDataset(spec.prefix));
  for (const std::string& file : {files.document_index, files.sample_index, files.shuffle_index}) {
    const std::string good = read_bytes(file);
    for (const std::int32_t wrong : {-1, 1000000}) {
      std::string bad = good;
      for (std::size_t at = 128; at < bad.size(); at += 4) std::memcpy(bad.data() + at, &wrong, 4);
      write_bytes(file, bad);
      const GptDataset data(spec, {});
      EXPECT_THAT(error_of([&] { data.get(0, {}); }), HasSubstr("index.npy, byte ")) << file << wrong;
    }
    write_bytes(file, good.substr(0, good.size() - 4));
    EXPECT_THAT(error_of([&] { GptDataset(spec, {}); }), HasSubstr(file + ", byte "));
    write_bytes(file, good);
  }
  const GptDataset data(spec, {});
  EXPECT_THROW(data.get(data.size(), {}), std::out_of_range);
  EXPECT_THROW(data.get(-1, {}), std::out_of_range);
  std::vector<std::int64_t> short_span(6);
  EXPECT_THROW(data.get(0, {.tokens = short_span}), std::logic_error);
}

}  // namespace
}  // namespace megatron::data
