#include "megatron/generate/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/kernels/phases/likelihood.h"

namespace megatron::generate {
namespace {

const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

/// Share of each token over an even grid of numbers in [0, 1).
std::map<std::int64_t, double> shares(const SamplingOptions& options) {
  std::map<std::int64_t, double> counts;
  constexpr int kDraws = 1000;
  for (int i = 0; i < kDraws; ++i) counts[sample(kLogits, options, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  return counts;
}

TEST(Sample, TemperatureZeroTakesTheLikeliestAndTheFirstOfEquals) {
  EXPECT_EQ(sample(kLogits, {.temperature = 0}, 0.99), 1);
  EXPECT_EQ(sample(std::vector<double>{1, 3, 3, 2}, {.temperature = 0}, 0.5), 1);
}

TEST(Sample, DrawsByTheSoftmax) {
  const auto p = shares({});
  EXPECT_NEAR(p.at(0), 0.1, 0.0015);
  EXPECT_NEAR(p.at(1), 0.4, 0.0015);
  EXPECT_NEAR(p.at(2), 0.2, 0.0015);
  EXPECT_NEAR(p.at(3), 0.3, 0.0015);
}

TEST(Sample, TemperatureSharpensByTheExponent) {
  const auto p = shares({.temperature = 0.5});  // probabilities squared and normalized: 0.01, 0.16, 0.04, 0.09 of 0.30
  EXPECT_NEAR(p.at(1), 0.16 / 0.30, 0.0015);
  EXPECT_NEAR(p.at(0), 0.01 / 0.30, 0.0015);
}

TEST(Sample, TopKKeepsTheKLikeliestAndNormalizes) {
  const auto p = shares({.top_k = 2});
  EXPECT_EQ(p.size(), 2u);
  EXPECT_NEAR(p.at(1), 0.4 / 0.7, 0.0015);
  EXPECT_NEAR(p.at(3), 0.3 / 0.7, 0.0015);
  EXPECT_EQ(shares({.top_k = 100}).size(), 4u);
}

TEST(Sample, TopPKeepsTheFewestThatReachTheShare) {
  EXPECT_EQ(shares({.top_p = 0.39}).size(), 1u);
  EXPECT_EQ(shares({.top_p = 0.41}).size(), 2u);
  EXPECT_EQ(shares({.top_p = 0.89}).size(), 3u);
  EXPECT_EQ(shares({.top_p = 1}).size(), 4u);
  EXPECT_NEAR(shares({.top_p = 0.69}).at(1), 0.4 / 0.7, 0.0015);
  EXPECT_EQ(shares({.top_k = 3, .top_p = 0.5}).size(), 2u);  // 4/9 of the three is below, 7/9 above
}

TEST(Sample, MinPKeepsTokensByTheLikeliest) {
  EXPECT_EQ(shares({.min_p = 0.24}).size(), 4u);  // of 0.4: the others are 0.25, 0.5 and 0.75 of it
  EXPECT_EQ(shares({.min_p = 0.26}).size(), 3u);
  EXPECT_EQ(shares({.min_p = 0.51}).size(), 2u);
  EXPECT_EQ(shares({.min_p = 1}).size(), 1u);
  EXPECT_NEAR(shares({.min_p = 0.6}).at(1), 0.4 / 0.7, 0.0015);
  EXPECT_EQ(shares({.top_k = 3, .min_p = 0.51}).size(), 2u);
  EXPECT_EQ(shares({.top_k = 1, .min_p = 0.1}).size(), 1u);
  EXPECT_EQ(shares({.top_p = 0.95, .min_p = 0.26}).size(), 3u);
  EXPECT_NEAR(shares({.top_p = 0.8, .min_p = 0.6}).at(3), 0.3 / 0.7, 0.0015);
}

TEST(Sample, TopPOfManyTokensKeepsWhatSortingAllOfThemWouldKeep) {
  std::vector<double> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<double>(i * i)) * 2;
  std::vector<double> weights(logits.size());
  std::transform(logits.begin(), logits.end(), weights.begin(), [](double x) { return std::exp(x); });
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::sort(weights.begin(), weights.end(), std::greater<>());
  for (const double top_p : {0.02, 0.5, 0.99}) {
    std::size_t kept = 0;
    for (double sum = 0; sum < top_p * all; ++kept) sum += weights[kept];
    const auto last = sample(logits, {.top_p = top_p}, std::nextafter(1.0, 0.0));
    EXPECT_NEAR(std::exp(logits[static_cast<std::size_t>(last)]), weights[kept - 1], 1e-12) << top_p;
  }
}

// What a GPU hands over: the same token as from all logits, or none where the list is too short.
TEST(Sample, DrawsFromAShortlistWhatItDrawsFromAllLogits) {
  std::vector<double> logits(3000);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = std::floor(std::pow(std::sin(static_cast<double>(i * i)), 15) * 200) / 16;
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (const SamplingOptions& options : {SamplingOptions{.top_k = 1},
                                         {.top_k = 256},
                                         {.top_k = 40, .top_p = 0.9},
                                         {.temperature = 0.5, .top_p = 0.3},
                                         {.temperature = 0.7, .top_p = 0.95, .min_p = 0.5},
                                         {.temperature = 3, .top_k = 17, .min_p = 0.9}}) {
    kernels::Shortlist list;
    list.tokens = likeliest(logits, static_cast<std::size_t>(shortlist_of(options)));
    for (const std::int64_t token : list.tokens) list.logits.push_back(logits[static_cast<std::size_t>(token)]);
    if (weighs_all(options)) list.all = kernels::phases::sum_of_likelihoods(logits, largest, options.temperature);
    for (int i = 0; i < 100; ++i)
      EXPECT_EQ(sample(list, logits.size(), options, (i + 0.5) / 100), sample(logits, options, (i + 0.5) / 100));
    if (!weighs_all(options)) continue;
    list.tokens.resize(1), list.logits.resize(1);
    EXPECT_EQ(sample(list, logits.size(), options, 0.5), std::nullopt);
  }
  EXPECT_EQ(shortlist_of({}), 0);
  EXPECT_EQ(shortlist_of({.top_k = 257}), 0);
  EXPECT_EQ(shortlist_of({.temperature = 0, .top_k = 5}), 0);
}

// Parts of the vocabulary are added up apart: the token is still the one at whose sum in the order of ids, here in more
// digits, the number lies.
TEST(Sample, OfAllTokensIsInTheOrderOfIds) {
  for (const std::size_t v : {2U, 1000U, 1024U, 1025U, 33000U}) {
    std::vector<double> logits(v);
    for (std::size_t i = 0; i < v; ++i) logits[i] = 3 * std::sin(static_cast<double>(i * i));
    for (const SamplingOptions& options : {SamplingOptions{}, {.temperature = 0.3}, {.temperature = 2, .min_p = 0.3}}) {
      const double largest = *std::max_element(logits.begin(), logits.end());
      std::vector<long double> sums;
      long double sum = 0;
      for (const double logit : logits) {
        const long double each = std::exp((static_cast<long double>(logit) - largest) / options.temperature);
        sums.push_back(sum += each >= options.min_p ? each : 0);
      }
      for (int i = 0; i < 200; ++i) {
        const double uniform = (i + 0.37) / 200;
        const auto want = std::upper_bound(sums.begin(), sums.end(), uniform * sum) - sums.begin();
        EXPECT_EQ(sample(logits, options, uniform), want) << v << " tokens, " << uniform;
      }
    }
  }
}

TEST(Likelihood, IsTheExponentialWithoutTheCLibrary) {
  EXPECT_EQ(kernels::phases::likelihood(0), 1);
  EXPECT_EQ(kernels::phases::likelihood(-709), 0);
  EXPECT_EQ(kernels::phases::likelihood(-HUGE_VAL), 0);
  for (double x = -707.9; x < 0; x += 0.0137)
    EXPECT_NEAR(kernels::phases::likelihood(x) / std::exp(x), 1, 4.5e-16) << x;
  for (double x = -1; x < -1e-18; x /= 3) EXPECT_NEAR(kernels::phases::likelihood(x), std::exp(x), 2.3e-16) << x;
}

TEST(Sample, SurvivesTheEndsOfTheUnitIntervalAndLargeLogits) {
  for (const SamplingOptions& options : {SamplingOptions{}, {.top_k = 4}, {.top_p = 0.9999}}) {
    const bool by_id = options.top_k == 0 && options.top_p == 1;
    EXPECT_EQ(sample(kLogits, options, 0.0), by_id ? 0 : 1);
    EXPECT_EQ(sample(kLogits, options, std::nextafter(1.0, 0.0)), by_id ? 3 : 0);
  }
  EXPECT_EQ(sample(std::vector<double>{-1e4, 1e4}, {}, 0.999), 1);
}

TEST(RequireFinite, NamesThePositionOfNanAndInfinity) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const std::vector<double> logits = {1, bad, 2};
    EXPECT_THAT([&] { require_finite(logits, 17); },
                ::testing::ThrowsMessage<std::runtime_error>(::testing::AllOf(
                    ::testing::HasSubstr("logits are not finite at position 17"), ::testing::HasSubstr("token 1"))));
  }
  EXPECT_NO_THROW(require_finite(kLogits, 17));
}

TEST(Draws, AreEvenAndDependOnSeedPromptCopyAndPosition) {
  std::set<double> distinct;
  double mean = 0;
  const std::vector<std::vector<std::int64_t>> prompts = {{}, {1}, {1, 2}, {2, 1}, {12}};
  for (std::uint64_t seed : {1, 2})
    for (const auto& prompt : prompts)
      for (std::int64_t copy : {0, 1, 2, 3})
        for (std::int64_t position = 0; position < 50; ++position) {
          const double u = Draws(seed, prompt, copy).at(position);
          ASSERT_GE(u, 0);
          ASSERT_LT(u, 1);
          distinct.insert(u);
          mean += u / 2000;
        }
  EXPECT_EQ(distinct.size(), 2000u);
  EXPECT_NEAR(mean, 0.5, 0.03);
}

TEST(Check, NamesEveryBrokenRule) {
  try {
    check({.temperature = -1, .top_k = -2, .top_p = std::nan(""), .min_p = 1.5});
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::AllOf(::testing::HasSubstr("temperature"), ::testing::HasSubstr("top-k"),
                                           ::testing::HasSubstr("top-p"), ::testing::HasSubstr("min-p")));
  }
  EXPECT_NO_THROW(check({.temperature = 0, .top_k = 0, .top_p = 1}));
}

}  // namespace
}  // namespace megatron::generate
