#include "megatron/data/mock_dataset.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

struct Filled {
  std::vector<std::int64_t> tokens, labels, types, decoder;
  std::vector<float> mask;
  PairInfo pair;
};

Filled sample_of(const MockDataset& data, std::int64_t i) {
  const auto n = static_cast<std::size_t>(data.seq_length());
  const auto written = data.fields().decoder_length > 0 ? static_cast<std::size_t>(data.fields().decoder_length) : n;
  Filled filled{.tokens = std::vector<std::int64_t>(n, -1),
                .labels = std::vector<std::int64_t>(written, -1),
                .types = std::vector<std::int64_t>(n, -1),
                .decoder = std::vector<std::int64_t>(data.fields().decoder_length > 0 ? written : 0, -1),
                .mask = std::vector<float>(written, -1),
                .pair = {}};
  data.get(i, {.tokens = filled.tokens,
               .labels = filled.labels,
               .loss_mask = filled.mask,
               .types = data.fields().pairs ? std::span(filled.types) : std::span<std::int64_t>(),
               .pair = &filled.pair,
               .decoder_tokens = filled.decoder});
  return filled;
}

constexpr std::int64_t kVocab = 11, kEnd = 10;
std::int64_t next(std::int64_t token) { return token == kEnd || token == 9 ? 1 : token + 1; }

TEST(MockDataset, CountsThroughDocumentsOfAGpt) {
  const MockDataset data({.vocab = kVocab, .seq_length = 300, .num_samples = 40, .key = 7});
  std::set<std::int64_t> firsts;
  int ends = 0;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const Filled filled = sample_of(data, i);
    firsts.insert(filled.tokens[0]);
    for (std::size_t k = 0; k < filled.labels.size(); ++k) {
      if (k + 1 < filled.tokens.size()) {
        EXPECT_EQ(filled.labels[k], filled.tokens[k + 1]) << i << " " << k;
      }
      ends += filled.labels[k] == kEnd ? 1 : 0;
      if (filled.labels[k] != kEnd) {
        EXPECT_EQ(filled.labels[k], next(filled.tokens[k])) << i << " " << k;
      }
      EXPECT_EQ(filled.mask[k], 1.0f);
    }
    EXPECT_EQ(sample_of(data, i).tokens, filled.tokens) << "a function of its number";
  }
  EXPECT_GT(firsts.size(), 4u) << "samples begin anywhere";
  EXPECT_GT(ends, 0) << "documents end";
  const MockDataset other({.vocab = kVocab, .seq_length = 300, .num_samples = 40, .key = 8});
  EXPECT_NE(sample_of(other, 0).tokens, sample_of(data, 0).tokens);
  EXPECT_THROW(sample_of(data, 40), std::out_of_range);
  EXPECT_THROW(MockDataset({.vocab = 2, .seq_length = 4}), ConfigError);
}

TEST(MockDataset, HidesTokensOfABertAndSwapsItsSegments) {
  const MockDataset data({.kind = MockKind::Pairs, .vocab = kVocab, .seq_length = 64, .num_samples = 200, .key = 7});
  int hidden = 0, all = 0, swapped = 0;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const Filled filled = sample_of(data, i);
    const auto length = static_cast<std::size_t>(filled.pair.length);
    ASSERT_GE(length, 32u);
    swapped += filled.pair.swapped ? 1 : 0;
    std::vector<std::int64_t> text, parts[2];
    for (std::size_t k = 0; k < filled.tokens.size(); ++k) {
      const bool masked = filled.mask[k] == 1.0f;
      if (k >= length) {
        EXPECT_TRUE(filled.tokens[k] == 0 && !masked && filled.types[k] == 0) << "padding";
        continue;
      }
      ++all;
      hidden += masked ? 1 : 0;
      EXPECT_EQ(filled.tokens[k] == kEnd, masked);
      parts[filled.types[k]].push_back(masked ? filled.labels[k] : filled.tokens[k]);
    }
    if (filled.pair.swapped) std::swap(parts[0], parts[1]);
    text = parts[0];
    text.insert(text.end(), parts[1].begin(), parts[1].end());
    for (std::size_t k = 1; k < text.size(); ++k) EXPECT_EQ(text[k], next(text[k - 1])) << i << " " << k;
  }
  EXPECT_NEAR(hidden, 0.15 * all, 0.02 * all);
  EXPECT_NEAR(swapped, 100, 40);
}

TEST(MockDataset, LetsAT5GoOnWhereItsEncoderEnds) {
  const MockDataset data({.kind = MockKind::EncoderDecoder,
                          .vocab = kVocab,
                          .seq_length = 20,
                          .decoder_seq_length = 9,
                          .num_samples = 50,
                          .key = 7});
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const Filled filled = sample_of(data, i);
    std::int64_t last = filled.tokens[static_cast<std::size_t>(filled.pair.length) - 1];
    EXPECT_EQ(filled.decoder[0], kEnd);
    for (std::size_t k = 0; k < filled.labels.size() && filled.mask[k] == 1.0f; ++k) {
      if (k > 0) {
        EXPECT_EQ(filled.decoder[k], last);
      }
      const bool ends = k + 1 == filled.labels.size() || filled.mask[k + 1] == 0.0f;
      EXPECT_EQ(filled.labels[k], ends ? kEnd : next(last));
      last = filled.labels[k];
    }
  }
}

}  // namespace
}  // namespace megatron::data
