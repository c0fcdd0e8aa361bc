#include "megatron/data/samples/masking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "megatron/base/error.h"
#include "tests/data/sentence_pair.h"

namespace megatron::data {
namespace {

/// 1000 words of one token, with a frame.
std::vector<std::int64_t> words_alone() {
  std::vector<std::int64_t> tokens = {1};
  for (std::int64_t i = 0; i < 1000; ++i) tokens.push_back(11 + 3 * (i % 29));
  tokens.push_back(2);
  return tokens;
}

/// How often spans of each length are drawn where nothing stands in their way: the first one of each sample.
std::map<std::int64_t, double> shares_of_lengths(const MaskingOptions& options) {
  const Masker masker(options, small_vocabulary());
  const std::vector<std::int64_t> tokens = words_alone();
  std::map<std::int64_t, double> shares;
  constexpr int kSamples = 4000;
  MaskedTokens masked;
  for (std::uint32_t seed = 0; seed < kSamples; ++seed) {
    NumpyRandom random(seed);
    std::vector<std::int64_t> changed = tokens;
    masker.mask(changed, 1000, random, masked);
    shares[masked.spans[0].last - masked.spans[0].first] += 1.0 / kSamples;
  }
  return shares;
}

TEST(Masking, DrawsLengthsAsOneOverN) {
  const auto shares = shares_of_lengths({.max_ngram = 4});
  for (std::int64_t n = 1; n <= 4; ++n) EXPECT_NEAR(shares.at(n), 12.0 / 25 / static_cast<double>(n), 0.03) << n;
  const auto longer = shares_of_lengths({.max_ngram = 4, .favor_longer = true});
  for (std::int64_t n = 1; n <= 4; ++n) EXPECT_NEAR(longer.at(n), 12.0 / 25 / static_cast<double>(5 - n), 0.03) << n;
}

TEST(Masking, DrawsGeometricLengthsUpToTheLongest) {
  const auto shares = shares_of_lengths({.max_ngram = 5, .geometric = true});
  double left = 1;
  for (std::int64_t n = 1; n < 5; ++n) {
    EXPECT_NEAR(shares.at(n), 0.2 * left, 0.03) << n;
    left *= 0.8;
  }
  EXPECT_NEAR(shares.at(5), left, 0.03);
}

TEST(Masking, ReplacesEightOfTenByTheMaskOneByAnythingAndKeepsOne) {
  const Masker masker({.probability = 0.5}, small_vocabulary());
  const std::vector<std::int64_t> tokens = words_alone();
  double masks = 0, kept = 0, hidden = 0;
  MaskedTokens masked;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    NumpyRandom random(seed);
    std::vector<std::int64_t> changed = tokens;
    masker.mask(changed, 1000, random, masked);
    EXPECT_EQ(masked.hidden, 500);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (masked.labels[i] < 0) {
        EXPECT_EQ(changed[i], tokens[i]);
        continue;
      }
      EXPECT_EQ(masked.labels[i], tokens[i]);
      hidden += 1;
      masks += changed[i] == 3 ? 1 : 0;
      kept += changed[i] == tokens[i] ? 1 : 0;
    }
  }
  EXPECT_EQ(hidden, 100 * 500);
  EXPECT_NEAR(masks / hidden, 0.8, 0.01);  // one in 1200 of them is a random token
  EXPECT_NEAR(kept / hidden, 0.1, 0.01);
}

TEST(Masking, NeverCutsAWordNorHidesTheFrameNorGoesBeyondItsShare) {
  const MaskingVocabulary vocabulary = small_vocabulary();
  const Masker masker({.probability = 0.3}, vocabulary);
  MaskedTokens masked;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    NumpyRandom random(seed);
    std::vector<std::int64_t> tokens = {1};
    const auto size = random.integer(1, 40);
    for (std::int64_t i = 0; i < size; ++i) tokens.push_back(random.integer(10, 90));
    tokens.push_back(2);
    const std::vector<std::int64_t> before = tokens;
    const std::int64_t target = 30;
    masker.mask(tokens, target, random, masked);
    const double share = std::max(1.0, std::nearbyint(0.3 * static_cast<double>(tokens.size())));
    EXPECT_LE(static_cast<double>(masked.hidden), std::min(share, 0.3 * target));
    EXPECT_EQ(masked.hidden, std::count_if(masked.labels.begin(), masked.labels.end(), [](auto l) { return l >= 0; }));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (before[i] == 1 || before[i] == 2) {
        EXPECT_EQ(masked.labels[i], -1);
      }
      if (vocabulary.continues[static_cast<std::size_t>(before[i])] && i > 1) {
        EXPECT_EQ(masked.labels[i] >= 0, masked.labels[i - 1] >= 0) << i;
      }
    }
  }
}

TEST(Masking, MovesAsManyTokensAgainWithoutLosingAny) {
  const Masker plain({.probability = 0.2}, small_vocabulary());
  const Masker moving({.probability = 0.2, .permute = true, .permute_seed = 7}, small_vocabulary());
  const std::vector<std::int64_t> tokens = words_alone();
  MaskedTokens masked, moved;
  std::vector<std::int64_t> without = tokens, with = tokens;
  NumpyRandom first(5), second(5);
  plain.mask(without, 1000, first, masked);
  moving.mask(with, 1000, second, moved);
  std::vector<std::int64_t> from, to;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (masked.labels[i] >= 0) {
      EXPECT_EQ(with[i], without[i]);
    } else if (moved.labels[i] >= 0) {
      EXPECT_EQ(moved.labels[i], tokens[i]);
      from.push_back(tokens[i]);
      to.push_back(with[i]);
    }
  }
  EXPECT_EQ(from.size(), 200u);
  EXPECT_NE(from, to);
  EXPECT_TRUE(std::is_permutation(from.begin(), from.end(), to.begin()));
}

TEST(Masking, HidesNothingWithoutShareOrTokens) {
  MaskedTokens masked;
  NumpyRandom random(1);
  std::vector<std::int64_t> tokens = words_alone();
  Masker({.probability = 0}, small_vocabulary()).mask(tokens, 1000, random, masked);
  EXPECT_EQ(masked.hidden, 0);
  EXPECT_EQ(tokens, words_alone());
  Masker({}, small_vocabulary()).mask({}, 1000, random, masked);
  EXPECT_TRUE(masked.labels.empty());
}

TEST(Masking, RefusesOptionsOutOfRange) {
  for (const double probability : {-0.1, 1.1, std::nan("")})
    EXPECT_THROW(Masker({.probability = probability}, small_vocabulary()), ConfigError);
  for (const std::int64_t max_ngram : {0, -1, 129})
    EXPECT_THROW(Masker({.max_ngram = max_ngram}, small_vocabulary()), ConfigError);
  EXPECT_THROW(Masker({.geometric = true, .permute = true}, small_vocabulary()), ConfigError);
}

}  // namespace
}  // namespace megatron::data
