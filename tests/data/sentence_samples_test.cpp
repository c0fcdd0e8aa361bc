#include "megatron/data/samples/sentence_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/data/masked_golden.h"
#include "tests/data/sentence_pair.h"

namespace megatron::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SentenceIndex, IsMegatronsForSettingsThatNoDatasetReaches) {
  const TemporaryFolder folder;
  for (const std::string& root : {kOwnGolden, kSharedGolden}) {
    if (!std::filesystem::exists(root)) continue;
    const auto golden = nlohmann::json::parse(read_bytes(root + "bert/mapping/cases.json"));
    const IndexedDataset data(root + "indexed/" + golden["prefix"].get<std::string>());
    for (std::size_t i = 0; i < golden["cases"].size(); ++i) {
      const auto& settings = golden["cases"][i];
      SentenceIndexSpec spec{.max_tokens = settings["max_seq_length"],
                             .min_sentences = settings["min_num_sent"],
                             .short_probability = settings["short_seq_prob"],
                             .seed = settings["seed"],
                             .passes = settings["epochs"]};
      if (settings["max_num_samples"] < 1000000000) spec.num_samples = settings["max_num_samples"];
      EXPECT_EQ(build_sentence_index(data, {settings["first"], settings["last"]}, spec, folder / "index.npy"),
                settings["rows"]);
      EXPECT_EQ(read_bytes(folder / "index.npy"), read_bytes(root + "bert/mapping/" + std::to_string(i) + ".npy")) << i;
    }
  }
}

TEST(SentenceIndex, HasEachUsableSentenceOnceAPass) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const IndexedDataset data(folder / "pair");
  for (const std::int64_t min_sentences : {1, 2, 3}) {
    build_sentence_index(data, {5, 30}, {.max_tokens = 12, .min_sentences = min_sentences, .passes = 3}, folder / "i");
    const NpyArray index(folder / "i");
    std::map<std::int64_t, int> seen;
    for (std::int64_t k = 0; k < index.size(); k += 3)
      for (std::int64_t s = index[k]; s < index[k + 1]; ++s) ++seen[s];
    std::map<std::int64_t, int> expected;
    for (std::int64_t d = 5; d < 30; ++d)
      for (std::int64_t s = data.first_sequence(d); s < data.first_sequence(d + 1); ++s)
        if (d % 6 >= min_sentences) expected[s] = 3;
    EXPECT_EQ(seen, expected);
  }
}

TEST(SentenceIndex, TellsHowFarEachOfItsPassesIs) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const IndexedDataset data(folder / "pair");
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> told;
  constexpr std::int64_t kWanted = 200'000;
  int times = 0;
  const std::int64_t samples =
      build_sentence_index(data, {0, 40}, {.max_tokens = 12, .num_samples = kWanted}, folder / "i",
                           [&](const std::string& pass, std::int64_t done, std::int64_t total) {
                             ++times;
                             EXPECT_GE(done, told[pass].first);
                             told[pass] = {done, total};
                           });
  EXPECT_GE(samples, kWanted);
  EXPECT_GT(times, 2 * 3) << "also on the way";
  EXPECT_EQ(told["count"], std::pair(kWanted, kWanted));
  for (const char* pass : {"write", "shuffle"}) EXPECT_EQ(told[pass], std::pair(samples, samples)) << pass;
}

TEST(SentenceIndex, LeavesOutDocumentsWithAVeryLongSentenceUnlessItIsTheirOnlyOne) {
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "pair", DType::U16);
    const auto add = [&](const std::vector<std::int32_t>& lengths) {
      std::int32_t sum = 0;
      for (const std::int32_t length : lengths) sum += length;
      writer.add_document(std::vector<std::int32_t>(static_cast<std::size_t>(sum), 10), lengths);
    };
    add({512, 3});
    add({513, 3});
    add({513});
    writer.publish();
  }
  EXPECT_EQ(build_sentence_index(IndexedDataset(folder / "pair"), {0, 3}, {.max_tokens = 600, .short_probability = 0},
                                 folder / "i"),
            2);
  EXPECT_EQ(values_of(folder / "i").size(), 6u);
}

TEST(SentenceIndex, RefusesSettingsAndDataThatGiveNoSample) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const IndexedDataset data(folder / "pair");
  const auto error = [&](const DocumentRange& range, const SentenceIndexSpec& spec) {
    return error_of([&] { build_sentence_index(data, range, spec, folder / "i"); });
  };
  const DocumentRange all{0, 40};
  EXPECT_THAT(error(all, {.max_tokens = 1}), HasSubstr("2 to"));
  EXPECT_THAT(error(all, {.max_tokens = 9, .short_probability = 1.5}), HasSubstr("share of shorter"));
  EXPECT_THAT(error(all, {.max_tokens = 9, .short_probability = 1e-12}), HasSubstr("share of shorter"));
  EXPECT_THAT(error(all, {.max_tokens = 9, .seed = 2147483647}), HasSubstr("2^31"));
  EXPECT_THAT(error(all, {.max_tokens = 9, .num_samples = -1}), HasSubstr("negative"));
  EXPECT_THAT(error({0, 1}, {.max_tokens = 9, .num_samples = 1}),
              AllOf(HasSubstr("--split-sentences"), HasSubstr("40 documents")));
  EXPECT_THAT(error(all, {.max_tokens = 9, .min_sentences = 6, .num_samples = 1}), HasSubstr("at least 6 sentences"));
  EXPECT_EQ(build_sentence_index(data, {0, 1}, {.max_tokens = 9}, folder / "i"), 0);
}

TEST(SentenceIndex, RefusesBeforeAnySampleIsMadeWhatCannotBe) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const IndexedDataset data(folder / "pair");
  const auto error = [&](const DocumentRange& range, const SentenceIndexSpec& spec) {
    return error_of([&] { check_sentence_range(data, range, spec); });
  };
  EXPECT_THAT(error({0, 1}, {.num_samples = 1}), HasSubstr("40 documents"));
  EXPECT_THAT(error({0, 40}, {.min_sentences = 6, .num_samples = 1}), HasSubstr("at least 6 sentences"));
  EXPECT_EQ(error({0, 40}, {.min_sentences = 5, .num_samples = 1}), "");
  EXPECT_EQ(error({0, 1}, {.num_samples = 0}), "");
  // More than any disk here has, and more than can be counted.
  for (const std::int64_t samples : {std::int64_t{1} << 48, std::int64_t{1} << 60})
    EXPECT_NE(error_of([&] {
                build_sentence_index(data, {0, 40}, {.max_tokens = 9, .num_samples = samples}, folder / "i");
              }),
              "");
  EXPECT_FALSE(std::filesystem::exists(folder / "i"));
}

TEST(SentenceIndex, RefusesDocumentsThatEndBeforeTheyBegin) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  std::string idx = read_bytes(folder / "pair.idx");
  const IndexedDataset data(folder / "pair");
  const auto at = static_cast<std::size_t>(34 + 12 * data.size() + 8 * 20);
  const std::int64_t far = data.size();
  std::memcpy(idx.data() + at, &far, sizeof far);
  const std::string bin = read_bytes(folder / "pair.bin");
  const IndexedDataset damaged(as_bytes(idx), as_bytes(bin), "name");
  EXPECT_THAT(error_of([&] {
                build_sentence_index(damaged, {0, 40}, {.max_tokens = 9}, folder / "i");
              }),
              AllOf(HasSubstr("name.idx"), HasSubstr("document 20")));
}

TEST(SentenceIndex, RefusesANegativeLength) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  std::string idx = read_bytes(folder / "pair.idx");
  const std::int32_t negative = -5;
  std::memcpy(idx.data() + 34 + 4 * 7, &negative, sizeof negative);
  const std::string bin = read_bytes(folder / "pair.bin");
  const IndexedDataset damaged(as_bytes(idx), as_bytes(bin), "name");
  EXPECT_THAT(error_of([&] {
                build_sentence_index(damaged, {0, 40}, {.max_tokens = 9}, folder / "i");
              }),
              AllOf(HasSubstr("name.idx, byte 62"), HasSubstr("-5")));
}

TEST(SentenceSamples, GivesTheIndexANameThatChangesWithAllThatDecidesIt) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const SentenceSource source{.prefix = folder / "pair", .split = "8,1,1", .num_samples = 10};
  const auto name = [&](const auto& change) {
    SentenceSource changed = source;
    SentenceBounds bounds{20, 2};
    change(changed, bounds);
    return sentence_index_file(changed, bounds, IndexedDataset(changed.prefix));
  };
  const std::string original = name([](auto&, auto&) {});
  EXPECT_THAT(original, HasSubstr(folder.path() + "/cache/sentence_indices/"));
  EXPECT_EQ(original, name([](auto&, auto&) {}));
  EXPECT_NE(original, name([](auto& s, auto&) { s.split = "7,2,1"; }));
  EXPECT_NE(original, name([](auto& s, auto&) { s.part = SplitPart::Valid; }));
  EXPECT_NE(original, name([](auto& s, auto&) { s.seed = 5; }));
  EXPECT_NE(original, name([](auto& s, auto&) { s.short_probability = 0.2; }));
  EXPECT_NE(original, name([](auto& s, auto&) { s.num_samples = 11; }));
  EXPECT_NE(original, name([](auto& s, auto&) { s.num_samples.reset(); }));
  EXPECT_NE(original, name([](auto&, auto& b) { b.max_tokens = 21; }));
  EXPECT_NE(original, name([](auto&, auto& b) { b.min_sentences = 1; }));
  // The same sentences in one document.
  std::vector<std::int32_t> lengths;
  std::int32_t tokens = 0;
  {
    const IndexedDataset pair(folder / "pair");
    for (std::int64_t i = 0; i < pair.size(); ++i) lengths.push_back(static_cast<std::int32_t>(pair.length(i)));
  }
  for (const std::int32_t length : lengths) tokens += length;
  IndexedDatasetWriter writer(folder / "pair", DType::U16);
  for (int d = 0; d < 39; ++d) writer.add_document({}, {});
  writer.add_document(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 10), lengths);
  writer.publish();
  EXPECT_NE(original, name([](auto&, auto&) {}));
}

TEST(SentenceSamples, ChecksEveryRowOfTheIndexFileItUses) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const SentenceSource source{.prefix = folder / "pair", .split = "8,1,1", .num_samples = 10};
  const SentenceBounds bounds{20, 2};
  SentenceSamples::build(source, bounds);
  const std::string file = sentence_index_file(source, bounds, IndexedDataset(source.prefix));
  const std::string good = read_bytes(file);
  const SentenceSamples samples(source, bounds);
  const SentenceRun run = samples.run(0);
  const auto error_with = [&](std::uint32_t first, std::uint32_t last, std::uint32_t target) {
    std::string bad = good;
    for (const std::uint32_t* value : {&first, &last, &target})
      std::memcpy(bad.data() + 128 + (value == &first ? 0 : value == &last ? 4 : 8), value, 4);
    write_bytes(file, bad);
    return error_of([&] { SentenceSamples(source, bounds).run(0); });
  };
  const auto first = static_cast<std::uint32_t>(run.first), last = static_cast<std::uint32_t>(run.last);
  EXPECT_EQ(error_with(first, last, 20), "");
  const auto refused = AllOf(HasSubstr(file + ", byte 128"), HasSubstr("built again"));
  EXPECT_THAT(error_with(first, 0xFFFFFFFF, 20), refused);
  EXPECT_THAT(error_with(last, first, 20), refused);
  EXPECT_THAT(error_with(first, first + 1, 20), refused);
  EXPECT_THAT(error_with(first, last, 21), refused);
  EXPECT_THAT(error_with(first, last, 1), refused);
  write_bytes(file, good.substr(0, good.size() - 4));
  EXPECT_THAT(error_of([&] { SentenceSamples(source, bounds); }), HasSubstr(file));
}

TEST(SentenceSamples, RefusesARunThatNoDocumentCanHave) {
  // 60 sentences of 100 tokens: their run would be read and cut down token by token.
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "pair", DType::U16);
    writer.add_document(std::vector<std::int32_t>(6000, 10), std::vector<std::int32_t>(60, 100));
    writer.publish();
  }
  const SentenceSource source{.prefix = folder / "pair", .split = "1"};
  const SentenceBounds bounds{150, 2};
  SentenceSamples::build(source, bounds);
  const std::string file = sentence_index_file(source, bounds, IndexedDataset(source.prefix));
  std::string bytes = read_bytes(file);
  const std::uint32_t all[] = {0, 60, 150};
  std::memcpy(bytes.data() + 128, all, sizeof all);
  write_bytes(file, bytes);
  EXPECT_THAT(error_of([&] { SentenceSamples(source, bounds).run(0); }), HasSubstr(file + ", byte 128"));
}

}  // namespace
}  // namespace megatron::data
