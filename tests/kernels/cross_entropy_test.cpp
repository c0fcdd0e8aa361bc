#include "megatron/kernels/cross_entropy.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: libtorch's log_softmax and cross entropy in float64 over the unpadded, undivided vocabulary.
namespace megatron::kernels {
namespace {

/// Loss and gradient of the whole vocabulary from the pieces of `ranks` column slices.
struct Result {
  at::Tensor loss, gradient;
};
Result by_ranks(const at::Tensor& padded, const at::Tensor& labels, std::int64_t vocab, int ranks, double smoothing,
                const at::Tensor& scale) {
  const std::int64_t columns = padded.size(1) / ranks;
  std::vector<at::Tensor> logits;
  std::vector<SoftmaxPieces> pieces;
  std::vector<VocabRange> ranges;
  at::Tensor max;
  for (int r = 0; r < ranks; ++r) {
    logits.push_back(padded.narrow(1, r * columns, columns).clone());
    ranges.push_back({.begin = r * columns, .end = vocab, .vocab = vocab});
    pieces.push_back(softmax_pieces(logits.back(), labels, ranges.back(), smoothing > 0));
    max = r == 0 ? pieces.back().max : max.maximum(pieces.back().max);
  }
  at::Tensor sum_exp = max * 0, target = max * 0, sum = max * 0;
  for (const SoftmaxPieces& p : pieces) {
    sum_exp = sum_exp + p.sum_exp * (p.max - max).exp();
    target = target + p.target;
    if (smoothing > 0) sum = sum + p.sum;
  }
  const at::Tensor logsumexp = max + sum_exp.log();
  for (int r = 0; r < ranks; ++r)
    cross_entropy_gradient_(logits[static_cast<std::size_t>(r)], labels, ranges[static_cast<std::size_t>(r)], logsumexp,
                            scale, smoothing);
  const at::Tensor loss = logsumexp - target * (1 - smoothing) - sum * (smoothing / static_cast<double>(vocab));
  return {loss, at::cat(logits, 1)};
}

void expect_matches_libtorch(at::ScalarType dtype, double tolerance) {
  for (const std::int64_t vocab : {3, 50, 1000, 5000}) {
    for (const int ranks : {1, 2, 4}) {
      for (const double smoothing : {0.0, 0.1}) {
        SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << " ranks " << ranks << " smoothing " << smoothing);
        const std::int64_t padded = (vocab + 11) / 12 * 12, n = 9;
        const at::Tensor logits = (at::randn({n, padded}) * 5).to(dtype),
                         labels = at::randint(0, vocab, {n}, at::kLong);
        const at::Tensor scale = at::randn({n}).to(dtype);
        scale[2] = 0.0;
        const Result got = by_ranks(logits, labels, vocab, ranks, smoothing, scale);
        const at::Tensor real = wide(logits).narrow(1, 0, vocab);
        EXPECT_LT(relative_error(got.loss, at::cross_entropy_loss(real, labels, {}, 0, -100, smoothing)), tolerance);
        const at::Tensor hit =
            at::one_hot(labels, vocab).to(at::kDouble) * (1 - smoothing) + smoothing / static_cast<double>(vocab);
        const at::Tensor gradient = (at::log_softmax(real, 1).exp() - hit) * wide(scale).unsqueeze(1);
        EXPECT_LT(relative_error(got.gradient.narrow(1, 0, vocab), gradient), 2 * tolerance);
        EXPECT_TRUE(got.gradient.narrow(1, vocab, padded - vocab).eq(0).all().item<bool>());
      }
    }
  }
}

using CrossEntropyTest = OnEveryInstructionSet;

TEST_F(CrossEntropyTest, MatchesLibtorchWhateverTheSplitOfTheVocabulary) {
  on_each([] { expect_matches_libtorch(at::kFloat, 1e-6); });
}

TEST_F(CrossEntropyTest, LogitsOfHalvesGiveLossesInFloat32AndGradientsRoundedOnce) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : kHalves) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const std::int64_t vocab : {3, 50, 5000}) {
          SCOPED_TRACE(testing::Message() << dtype << " vocabulary " << vocab << " smoothing " << smoothing);
          const std::int64_t padded = (vocab + 11) / 12 * 12, n = 9;
          const at::Tensor logits = (at::randn({n, padded}) * 5).to(dtype), scale = at::randn({n}),
                           labels = at::randint(0, vocab, {n}, at::kLong);
          const Result got = by_ranks(logits, labels, vocab, 2, smoothing, scale);
          const at::Tensor real = wide(logits).narrow(1, 0, vocab);
          EXPECT_EQ(got.loss.scalar_type(), at::kFloat);
          EXPECT_LT(relative_error(got.loss, at::cross_entropy_loss(real, labels, {}, 0, -100, smoothing)), 1e-6);
          const at::Tensor hit =
              at::one_hot(labels, vocab).to(at::kDouble) * (1 - smoothing) + smoothing / static_cast<double>(vocab);
          const at::Tensor gradient = (at::log_softmax(real, 1).exp() - hit) * wide(scale).unsqueeze(1);
          // Below 6e-8 fp16 has nothing.
          EXPECT_LT(error_beyond_rounding(got.gradient.narrow(1, 0, vocab), gradient), 2e-6);
          EXPECT_TRUE(got.gradient.narrow(1, vocab, padded - vocab).eq(0).all().item<bool>());
        }
      }
    }
  });
}

TEST_F(CrossEntropyTest, FollowsAMaximumThatGrowsBehindLogitsThatDoNotCount) {
  on_each([] {
    const std::int64_t vocab = 5000;
    const at::Tensor logits = at::linspace(-60, 60, vocab).to(at::kFloat).unsqueeze(0).clone();
    logits.narrow(1, 0, 1100).fill_(-std::numeric_limits<float>::infinity());
    const at::Tensor labels = at::full({1}, 4000, at::kLong), scale = at::ones({1});
    const at::Tensor truth = at::cross_entropy_loss(wide(logits), labels);
    const Result got = by_ranks(logits, labels, vocab, 1, 0, scale);
    EXPECT_LT(relative_error(got.loss, truth), 1e-6);
    EXPECT_LT(relative_error(got.gradient, at::log_softmax(wide(logits), 1).exp() - at::one_hot(labels, vocab)), 2e-6);
  });
}

TEST(CrossEntropyReference, KeepsFloat64) { expect_matches_libtorch(at::kDouble, 1e-14); }

TEST_F(CrossEntropyTest, LeavesNoGradientWhereTheLabelIsOutsideTheVocabulary) {
  on_each([] {
    at::Tensor logits = at::randn({2, 40}), labels = at::randint(0, 40, {2}, at::kLong);
    labels[0] = -1;
    const VocabRange range{.begin = 0, .end = 40, .vocab = 40};
    const SoftmaxPieces pieces = softmax_pieces(logits, labels, range, false);
    EXPECT_EQ(pieces.target[0].item<float>(), 0.0f);
    const at::Tensor scale = at::randn({2});
    scale[0] = 0.0;
    cross_entropy_gradient_(logits, labels, range, pieces.max + pieces.sum_exp.log(), scale, 0);
    EXPECT_TRUE(logits[0].eq(0).all().item<bool>());
  });
}

TEST_F(CrossEntropyTest, StaysFiniteForLargeLogitsAndLetsNanThrough) {
  on_each([] {
    at::Tensor logits = at::randn({2, 100}) * 1e4;
    const at::Tensor labels = at::randint(0, 100, {2}, at::kLong);
    const VocabRange range{.begin = 0, .end = 100, .vocab = 100};
    logits[1][3] = std::nan("");
    const SoftmaxPieces pieces = softmax_pieces(logits, labels, range, false);
    EXPECT_GE(pieces.sum_exp[0].item<float>(), 1.0f);
    EXPECT_TRUE(std::isnan(pieces.sum_exp[1].item<float>()));
  });
}

}  // namespace
}  // namespace megatron::kernels
