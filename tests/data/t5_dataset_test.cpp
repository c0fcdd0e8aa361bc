#include "megatron/data/samples/t5_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/data/masked_golden.h"
#include "tests/data/sentence_pair.h"

namespace megatron::data {
namespace {

T5DatasetSpec spec_of(const MaskedCase& golden) {
  return {.source = golden.source,
          .seq_length = golden.settings["sequence_length"],
          .decoder_seq_length = golden.settings["sequence_length_decoder"],
          .masking = masking_of(golden.settings)};
}

/// One sample with buffers of its own.
struct Fetched {
  Fetched(const T5Dataset& data, std::int64_t i)
      : encoder(static_cast<std::size_t>(data.seq_length())),
        decoder(static_cast<std::size_t>(data.decoder_seq_length())),
        labels(decoder.size()),
        mask(decoder.size()),
        info(data.get(i, {.encoder_tokens = encoder, .decoder_tokens = decoder, .labels = labels, .loss_mask = mask})) {
  }
  std::vector<std::int64_t> encoder, decoder, labels;
  std::vector<float> mask;
  T5SampleInfo info;
};

/// Samples as Megatron's arrays have them.
struct Rows {
  Rows(const T5Dataset& data, const std::vector<std::int64_t>& ids) {
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    const auto shown = [](auto& to, std::int64_t length, std::int64_t of) {
      for (std::int64_t k = 0; k < of; ++k) to.push_back(k < length ? 1 : 0);
    };
    for (const std::int64_t id : ids) {
      const Fetched sample(data, id);
      append(text_enc, sample.encoder);
      append(text_dec, sample.decoder);
      append(labels, sample.labels);
      append(loss_mask, sample.mask);
      shown(enc_mask, sample.info.encoder_length, data.seq_length());
      shown(dec_mask, sample.info.decoder_length, data.decoder_seq_length());
      truncated.push_back(sample.info.truncated ? 1 : 0);
    }
  }
  std::vector<std::int64_t> text_enc, text_dec, labels, loss_mask, enc_mask, dec_mask, truncated;
};

TEST(MegatronT5, HasTheSameIndexToTheByte) {
  const TemporaryFolder cache;
  for (const MaskedCase& golden : masked_cases("t5", cache.path())) {
    const T5DatasetSpec spec = spec_of(golden);
    T5Dataset::build(spec);
    EXPECT_EQ(
        read_bytes(sentence_index_file(spec.source, {spec.seq_length - 2, 1}, IndexedDataset(spec.source.prefix))),
        read_bytes(golden.stem + ".sample_index.npy"))
        << golden.stem;
  }
}

TEST(MegatronT5, HasTheSameSamples) {
  const TemporaryFolder cache;
  for (const MaskedCase& golden : masked_cases("t5", cache.path())) {
    T5Dataset::build(spec_of(golden));
    const T5Dataset data(spec_of(golden), vocabulary_of(golden.settings));
    EXPECT_EQ(data.size(), golden.part["samples"]);
    const Rows rows(data, golden.part["dumped"]);
    EXPECT_EQ(rows.text_enc, values_of(golden.stem + ".text_enc.npy")) << golden.stem;
    EXPECT_EQ(rows.text_dec, values_of(golden.stem + ".text_dec.npy")) << golden.stem;
    EXPECT_EQ(rows.labels, values_of(golden.stem + ".labels.npy")) << golden.stem;
    EXPECT_EQ(rows.loss_mask, values_of(golden.stem + ".loss_mask.npy")) << golden.stem;
    EXPECT_EQ(rows.enc_mask, values_of(golden.stem + ".enc_mask.npy")) << golden.stem;
    EXPECT_EQ(rows.dec_mask, values_of(golden.stem + ".dec_mask.npy")) << golden.stem;
    EXPECT_EQ(rows.truncated, values_of(golden.stem + ".truncated.npy")) << golden.stem;
  }
}

TEST(MegatronT5, CasesOfEveryOptionAreInTheSharedFolder) {
  if (!std::filesystem::exists(kSharedGolden)) GTEST_SKIP() << "no " << kSharedGolden;
  std::vector<std::string> names;
  for (const MaskedCase& golden : masked_cases("t5", ""))
    if (golden.root == kSharedGolden && golden.source.part == SplitPart::Train)
      names.push_back(golden.settings["name"]);
  EXPECT_THAT(names, testing::UnorderedElementsAre("ngram3", "pretrain"));
}

T5DatasetSpec small_spec(const TemporaryFolder& folder) {
  return {.source = {.prefix = folder / "pair", .split = "1", .num_samples = 60},
          .seq_length = 40,
          .decoder_seq_length = 40,
          .masking = {.probability = 0.4, .max_ngram = 4, .geometric = true}};
}

/// The text that a sample was made of: each sentinel of the encoder replaced by what the decoder says behind it.
std::vector<std::int64_t> restored(const Fetched& sample, const MaskingVocabulary& vocabulary) {
  const auto is_sentinel = [&](std::int64_t token) { return token >= vocabulary.sentinels.front(); };
  std::vector<std::int64_t> text;
  for (std::int64_t k = 0; k < sample.info.encoder_length; ++k) {
    const std::int64_t token = sample.encoder[static_cast<std::size_t>(k)];
    if (!is_sentinel(token)) {
      text.push_back(token);
      continue;
    }
    auto at = std::find(sample.labels.begin(), sample.labels.end(), token);
    for (++at; !is_sentinel(*at) && *at != vocabulary.end; ++at) text.push_back(*at);
  }
  return text;
}

TEST(T5Dataset, LosesNothingOfTheTextWhateverTheRoomForSpans) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  T5DatasetSpec spec = small_spec(folder);
  T5Dataset::build(spec);
  MaskingVocabulary vocabulary = small_vocabulary();
  const T5Dataset wide(spec, vocabulary);
  for (const std::int64_t decoder : {3, 6, 40})
    for (const std::size_t sentinels : {std::size_t{1}, std::size_t{3}, std::size_t{20}}) {
      spec.decoder_seq_length = decoder;
      vocabulary.sentinels.resize(sentinels);
      for (std::size_t s = 0; s < sentinels; ++s) vocabulary.sentinels[s] = 100 + static_cast<std::int64_t>(s);
      const T5Dataset data(spec, vocabulary);
      std::set<std::int64_t> lengths;
      for (std::int64_t i = 0; i < data.size(); ++i) {
        const Fetched sample(data, i), expected(wide, i);
        EXPECT_EQ(restored(sample, vocabulary), restored(expected, small_vocabulary()));
        ASSERT_LE(sample.info.decoder_length, decoder);
        const auto length = static_cast<std::size_t>(sample.info.decoder_length);
        EXPECT_EQ(sample.decoder[0], vocabulary.begin);
        EXPECT_EQ(sample.labels[length - 1], vocabulary.end);
        for (std::size_t k = 0; k + 1 < length; ++k) EXPECT_EQ(sample.labels[k], sample.decoder[k + 1]);
        for (std::size_t k = 0; k < sample.mask.size(); ++k) EXPECT_EQ(sample.mask[k], k < length ? 1.0f : 0.0f);
        lengths.insert(sample.info.decoder_length);
      }
      EXPECT_GT(*lengths.rbegin(), 2);  // something was hidden
    }
}

TEST(T5Dataset, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  write_sentence_pair(folder / "pair");
  T5DatasetSpec spec = small_spec(folder);
  T5Dataset::build(spec);
  const T5Dataset data(spec, small_vocabulary());
  EXPECT_THROW(data.get(data.size(), {}), std::out_of_range);
  std::vector<std::int64_t> short_span(39);
  EXPECT_THROW(data.get(0, {.labels = short_span}), std::logic_error);
  EXPECT_THROW(T5Dataset(spec, {}), std::logic_error);
  spec.decoder_seq_length = 2;
  EXPECT_THROW(T5Dataset::build(spec), ConfigError);
  spec = small_spec(folder);
  spec.masking.permute = true;
  EXPECT_THROW(T5Dataset(spec, small_vocabulary()), ConfigError);
}

}  // namespace
}  // namespace megatron::data
