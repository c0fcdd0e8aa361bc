#include "megatron/data/samples/bert_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "megatron/data/preprocess/preprocess.h"
#include "tests/data/masked_golden.h"
#include "tests/data/sentence_pair.h"

namespace megatron::data {
namespace {

using testing::HasSubstr;

BertDatasetSpec spec_of(const MaskedCase& golden) {
  return {.source = golden.source,
          .seq_length = golden.settings["sequence_length"],
          .sentence_order = golden.settings["classification_head"],
          .masking = masking_of(golden.settings)};
}

/// Samples as Megatron's arrays have them.
struct Rows {
  Rows(const BertDataset& data, const std::vector<std::int64_t>& ids) {
    const auto n = static_cast<std::size_t>(data.seq_length());
    std::vector<float> mask(n);
    for (const std::int64_t id : ids) {
      for (auto* values : {&text, &types, &labels}) values->resize(values->size() + n);
      const auto last = [n](auto& values) { return std::span(values).last(n); };
      const BertSampleInfo info =
          data.get(id, {.tokens = last(text), .types = last(types), .labels = last(labels), .loss_mask = mask});
      loss_mask.insert(loss_mask.end(), mask.begin(), mask.end());
      for (std::int64_t k = 0; k < data.seq_length(); ++k) padding_mask.push_back(k < info.length ? 1 : 0);
      is_random.push_back(info.is_random ? 1 : 0);
      truncated.push_back(info.truncated ? 1 : 0);
    }
  }
  std::vector<std::int64_t> text, types, labels, loss_mask, padding_mask, is_random, truncated;
};

TEST(MegatronBert, HasTheSameIndexToTheByte) {
  const TemporaryFolder cache;
  for (const MaskedCase& golden : masked_cases("bert", cache.path())) {
    const BertDatasetSpec spec = spec_of(golden);
    BertDataset::build(spec);
    const SentenceBounds bounds{spec.seq_length - 3, spec.sentence_order ? 2 : 1};
    EXPECT_EQ(read_bytes(sentence_index_file(spec.source, bounds, IndexedDataset(spec.source.prefix))),
              read_bytes(golden.stem + ".sample_index.npy"))
        << golden.stem;
  }
}

TEST(MegatronBert, HasTheSameSamples) {
  const TemporaryFolder cache;
  for (const MaskedCase& golden : masked_cases("bert", cache.path())) {
    BertDataset::build(spec_of(golden));
    const BertDataset data(spec_of(golden), vocabulary_of(golden.settings));
    EXPECT_EQ(data.size(), golden.part["samples"]);
    const Rows rows(data, golden.part["dumped"]);
    EXPECT_EQ(rows.text, values_of(golden.stem + ".text.npy")) << golden.stem;
    EXPECT_EQ(rows.types, values_of(golden.stem + ".types.npy")) << golden.stem;
    EXPECT_EQ(rows.labels, values_of(golden.stem + ".labels.npy")) << golden.stem;
    EXPECT_EQ(rows.loss_mask, values_of(golden.stem + ".loss_mask.npy")) << golden.stem;
    EXPECT_EQ(rows.padding_mask, values_of(golden.stem + ".padding_mask.npy")) << golden.stem;
    EXPECT_EQ(rows.is_random, values_of(golden.stem + ".is_random.npy")) << golden.stem;
    EXPECT_EQ(rows.truncated, values_of(golden.stem + ".truncated.npy")) << golden.stem;
  }
}

TEST(MegatronBert, CasesOfEveryOptionAreInTheSharedFolder) {
  if (!std::filesystem::exists(kSharedGolden)) GTEST_SKIP() << "no " << kSharedGolden;
  std::vector<std::string> names;
  for (const MaskedCase& golden : masked_cases("bert", ""))
    if (golden.root == kSharedGolden && golden.source.part == SplitPart::Train)
      names.push_back(golden.settings["name"]);
  EXPECT_THAT(names, testing::UnorderedElementsAre("geometric", "no_head", "permutation", "pieces_longer", "pretrain",
                                                   "unigram"));
}

BertDatasetSpec small_spec(const TemporaryFolder& folder) {
  return {.source = {.prefix = folder / "pair", .split = "8,1,1", .num_samples = 60}, .seq_length = 24};
}

TEST(BertDataset, EndsAndPadsWhatItMasksAndSaysHowLongItIs) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  BertDatasetSpec spec = small_spec(folder);
  for (const bool pairs : {true, false}) {
    spec.sentence_order = pairs;
    BertDataset::build(spec);
    const MaskingVocabulary vocabulary = small_vocabulary();
    const BertDataset data(spec, vocabulary);
    for (std::int64_t i = 0; i < data.size(); ++i) {
      std::vector<std::int64_t> tokens(24), types(24), labels(24);
      std::vector<float> mask(24);
      const BertSampleInfo info = data.get(i, {.tokens = tokens, .types = types, .labels = labels, .loss_mask = mask});
      const auto length = static_cast<std::size_t>(info.length);
      ASSERT_LE(length, 24u);
      EXPECT_EQ(tokens[0], vocabulary.cls);
      EXPECT_EQ(tokens[length - 1], vocabulary.sep);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), vocabulary.sep), pairs ? 2 : 1);
      EXPECT_TRUE(pairs || !info.is_random);
      for (std::size_t k = 0; k < 24; ++k) {
        EXPECT_EQ(labels[k] >= 0, mask[k] == 1.0f);
        if (k < length) continue;
        EXPECT_EQ(tokens[k], vocabulary.pad);
        EXPECT_EQ(mask[k], 0.0f);
      }
    }
  }
}

TEST(BertDataset, WritesOnlyWhatIsAskedAndTheSameWhateverElseIsAsked) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const BertDatasetSpec spec = small_spec(folder);
  BertDataset::build(spec);
  const BertDataset data(spec, small_vocabulary());
  for (std::int64_t i = 0; i < 10; ++i) {
    std::vector<std::int64_t> all(24), alone(24), types(24), labels(24);
    const BertSampleInfo info = data.get(i, {.tokens = all, .types = types, .labels = labels});
    EXPECT_EQ(data.get(i, {.tokens = alone}).length, info.length);
    EXPECT_EQ(alone, all);
    EXPECT_EQ(data.get(i, {}).is_random, info.is_random);
  }
}

TEST(BertSamples, AreThoseOfTheDatasetWithZerosForLabelsThatDoNotCount) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const BertDatasetSpec spec = small_spec(folder);
  BertDataset::build(spec);
  const BertDataset data(spec, small_vocabulary());
  const BertSamples samples(spec, small_vocabulary());
  EXPECT_EQ(samples.size(), data.size());
  EXPECT_TRUE(samples.fields().pairs && samples.fields().loss_mask && !samples.fields().position_ids);
  EXPECT_EQ(samples.name_of(3), folder / "pair" + ", sample 3");
  for (std::int64_t i = 0; i < 10; ++i) {
    std::vector<std::int64_t> tokens(24), types(24), labels(24), tokens2(24), types2(24), labels2(24), positions(24);
    std::vector<float> mask(24), mask2(24);
    PairInfo pair;
    const BertSampleInfo info = data.get(i, {.tokens = tokens, .types = types, .labels = labels, .loss_mask = mask});
    samples.get(i, {.tokens = tokens2,
                    .labels = labels2,
                    .loss_mask = mask2,
                    .position_ids = positions,
                    .types = types2,
                    .pair = &pair});
    EXPECT_EQ(tokens2, tokens);
    EXPECT_EQ(types2, types);
    EXPECT_EQ(mask2, mask);
    EXPECT_EQ(positions[23], 23);
    EXPECT_EQ(pair.length, info.length);
    EXPECT_EQ(pair.swapped, info.is_random);
    for (std::size_t k = 0; k < 24; ++k) EXPECT_EQ(labels2[k], mask[k] == 1.0f ? labels[k] : 0);
  }
}

TEST(BertDataset, RefusesSamplesThatAreNotThereAndSpansOfAnotherLength) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const BertDatasetSpec spec = small_spec(folder);
  EXPECT_THROW(BertDataset(spec, small_vocabulary()), ConfigError);  // no index yet
  BertDataset::build(spec);
  const BertDataset data(spec, small_vocabulary());
  EXPECT_THROW(data.get(data.size(), {}), std::out_of_range);
  EXPECT_THROW(data.get(-1, {}), std::out_of_range);
  std::vector<std::int64_t> short_span(23);
  EXPECT_THROW(data.get(0, {.tokens = short_span}), std::logic_error);
  EXPECT_THROW(BertDataset(spec, {}), std::logic_error);
}

TEST(BertDataset, NamesThePairWhereATokenIsNotOfTheVocabulary) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  const BertDatasetSpec spec = small_spec(folder);
  BertDataset::build(spec);
  MaskingVocabulary vocabulary = small_vocabulary();
  vocabulary.size = 12;
  vocabulary.continues.resize(12);
  const BertDataset data(spec, vocabulary);
  EXPECT_THAT(error_of([&] {
                for (std::int64_t i = 0; i < data.size(); ++i) data.get(i, {});
              }),
              testing::AllOf(HasSubstr(folder / "pair"), HasSubstr("the vocabulary's 12")));
}

// Document d has the sentences "D<s>." (s < 5), whose only token is 10 + 5 d + s; nothing is masked.
TEST(BertDataset, PairsNeighbouringSentencesOfTextThatWasPreprocessed) {
  const TemporaryFolder folder;
  std::string text;
  for (int d = 0; d < 20; ++d) {
    text += "{\"text\": \"";
    for (int s = 0; s < 5; ++s) text += "D" + std::to_string(5 * d + s) + ". ";
    text += "\"}\n";
  }
  write_bytes(folder / "in.jsonl", text);
  PreprocessOptions options{.output_prefix = folder / "out", .split_sentences = true};
  options.text.inputs = {folder / "in.jsonl"};
  const auto encode = [](std::string_view sentence, std::vector<std::int32_t>& ids) {
    ids.push_back(10 + std::stoi(std::string(sentence.substr(1))));
    return 0;
  };
  preprocess(options, {.make = [&] { return encode; }, .vocab_size = 120});

  const BertDatasetSpec spec{.source = {.prefix = folder / "out_text_sentence", .split = "1", .short_probability = 0},
                             .seq_length = 6,
                             .masking = {.probability = 0}};
  BertDataset::build(spec);
  const BertDataset data(spec, small_vocabulary());
  // Three tokens of text are aimed at, and no sentence is left alone: a document gives three sentences, and two.
  std::set<std::vector<std::int64_t>> expected, got;
  for (std::int64_t first = 10; first < 110; first += 5) {
    expected.insert({first, first + 1, first + 2});
    expected.insert({first + 3, first + 4});
  }
  EXPECT_EQ(data.size(), 40);
  std::vector<std::int64_t> tokens(6);
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const BertSampleInfo info = data.get(i, {.tokens = tokens});
    std::vector<std::int64_t> sentences;
    for (const std::int64_t token : tokens)
      if (token >= 10) sentences.push_back(token);
    EXPECT_EQ(std::ranges::is_sorted(sentences), !info.is_random);
    std::ranges::sort(sentences);
    got.insert(sentences);
  }
  EXPECT_EQ(got, expected);
}

}  // namespace
}  // namespace megatron::data
