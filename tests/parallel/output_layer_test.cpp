#include "megatron/parallel/output_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <tuple>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/testing/tensors.h"

namespace megatron::parallel {
namespace {

using megatron::testing::make_parameter;
using megatron::testing::slice_of;

constexpr std::int64_t kVocab = 9, kHidden = 6;

/// Five positions of two samples; 12 rows of weight, of which 9 are the vocabulary: with tp 4 the last rank holds only
/// padding.
struct Dense {
  at::Tensor hidden = at::randn({5, 2, kHidden}, at::kDouble), w = at::randn({12, kHidden}, at::kDouble);
  at::Tensor bias;
  at::Tensor labels = at::tensor({0, 8, 3, 5, 1, 1, 7, 2, 4, 6}, at::kLong).view({5, 2});
  at::Tensor mask = at::tensor({1., 1., 0., 1., 2., 1., 1., 0., 1., 1.}, at::kDouble).view({5, 2});
  at::Tensor loss;

  explicit Dense(double smoothing, bool with_bias = false)
      : bias(with_bias ? at::randn({12}, at::kDouble) : at::zeros({12}, at::kDouble)) {
    hidden.requires_grad_(true);
    w.requires_grad_(true);
    bias.requires_grad_(true);
    const auto logits = at::linear(hidden, w.narrow(0, 0, kVocab), bias.narrow(0, 0, kVocab)).view({10, kVocab});
    const auto none = at::Reduction::None;
    loss = (at::cross_entropy_loss(logits, labels.view({10}), {}, none, -100, smoothing) * mask.view({10})).sum();
    loss.backward();
  }
};

class OutputLayer : public ::testing::TestWithParam<std::tuple<int, double, int>> {};

TEST_P(OutputLayer, LossAndGradientsMatchTheDenseSoftmax) {
  const auto [t, smoothing, chunk] = GetParam();
  const Dense dense(smoothing, /*with_bias=*/true);
  comm::run_ranks(t, [&](comm::Group tp) {
    const auto w = make_parameter("w", dense.w, 0, tp.size(), tp.rank());
    const auto bias = make_parameter("b", dense.bias, 0, tp.size(), tp.rank());
    const VocabParallelOutput output(w, tp, {.vocab = kVocab, .label_smoothing = smoothing, .chunk_tokens = chunk},
                                     bias);
    const auto hidden = dense.hidden.detach().clone().requires_grad_(true);
    const auto loss = output.loss_sum(hidden, dense.labels, dense.mask);
    EXPECT_NEAR_TENSOR(loss, dense.loss, 1e-13);
    loss.backward();
    EXPECT_NEAR_TENSOR(hidden.grad(), dense.hidden.grad(), 1e-13);
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), 1e-13);
    EXPECT_NEAR_TENSOR(bias->grad, slice_of(dense.bias.grad(), bias->spec), 1e-13);
    EXPECT_EQ(w->contributions(), 1);
    EXPECT_EQ(bias->contributions(), 1);
    output.loss_sum(hidden, dense.labels, dense.mask).backward();
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad() * 2, w->spec), 1e-13);
    EXPECT_NEAR_TENSOR(bias->grad, slice_of(dense.bias.grad() * 2, bias->spec), 1e-13);
    EXPECT_NEAR_TENSOR(output.logits(dense.hidden),
                       at::linear(dense.hidden, dense.w.narrow(0, 0, kVocab), dense.bias.narrow(0, 0, kVocab)), 1e-13);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, OutputLayer,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(0.0, 0.2),
                                            ::testing::Values(0, 1, 4, 64)));

TEST(OutputLayer, WritesZerosWhereNoTokenCounts) {
  const Dense dense(0);
  const auto w = make_parameter("w", dense.w, 0, 1, 0);
  const VocabParallelOutput output(w, {}, {.vocab = kVocab});
  const auto hidden = dense.hidden.detach().clone().requires_grad_(true);
  const auto loss = output.loss_sum(hidden, dense.labels, at::zeros_like(dense.mask));
  loss.backward();
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(w->grad.abs().max().item<double>(), 0);
  EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0);
}

TEST(OutputLayer, WritesNoGradientWithoutAutograd) {
  const Dense dense(0);
  const auto w = make_parameter("w", dense.w, 0, 1, 0);
  const VocabParallelOutput output(w, {}, {.vocab = kVocab});
  const c10::AutoGradMode off(false);
  const auto loss = output.loss_sum(dense.hidden, dense.labels, dense.mask);
  EXPECT_NEAR_TENSOR(loss, dense.loss, 1e-13);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_EQ(w->contributions(), 0);
  EXPECT_TRUE(w->grad.isnan().all().item<bool>());
}

TEST(OutputLayer, ScalesGradientsWhereTheyBeginAndNotTheLoss) {
  const Dense dense(0.1);
  for (const double scale : {0x1p20, 3.0})
    comm::run_ranks(2, [&](comm::Group tp) {
      const auto w = make_parameter("w", dense.w, 0, 2, tp.rank());
      const VocabParallelOutput output(w, tp, {.vocab = kVocab, .label_smoothing = 0.1, .chunk_tokens = 4});
      const auto hidden = dense.hidden.detach().clone().requires_grad_(true);
      const auto loss = output.loss_sum(hidden, dense.labels, dense.mask, scale);
      EXPECT_NEAR_TENSOR(loss, dense.loss, 1e-13);
      loss.backward();
      EXPECT_NEAR_TENSOR(hidden.grad() / scale, dense.hidden.grad(), 1e-13);
      EXPECT_NEAR_TENSOR(w->grad / scale, slice_of(dense.w.grad(), w->spec), 1e-13);
    });
}

TEST(OutputLayer, RefusesAnUpstreamGradientOtherThanOne) {
  const Dense dense(0);
  const auto w = make_parameter("w", dense.w, 0, 1, 0);
  const VocabParallelOutput output(w, {}, {.vocab = kVocab});
  EXPECT_THROW((output.loss_sum(dense.hidden, dense.labels, dense.mask) / 2).backward(), std::logic_error);
}

TEST(OutputLayer, RefusesALabelOutsideTheVocabularyOnlyWhereItCounts) {
  const Dense dense(0);
  const auto w = make_parameter("w", dense.w, 0, 1, 0);
  const VocabParallelOutput output(w, {}, {.vocab = kVocab});
  auto labels = dense.labels.clone();
  labels[1][0] = -1;  // its mask is 0
  EXPECT_NEAR_TENSOR(output.loss_sum(dense.hidden, labels, dense.mask), dense.loss, 1e-13);
  labels[2][1] = 9;
  try {
    output.loss_sum(dense.hidden, labels, dense.mask);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("label 9 at position 2 of sample 1"));
  }
}

TEST(OutputLayer, LogitsAreThoseOfTheWholeVocabularyOnEveryRank) {
  const Dense dense(0);
  const auto expected = at::linear(dense.hidden, dense.w.narrow(0, 0, kVocab));
  for (const int t : {1, 2, 4})
    comm::run_ranks(t, [&](comm::Group tp) {
      const auto w = make_parameter("w", dense.w, 0, t, tp.rank());
      const VocabParallelOutput output(w, tp, {.vocab = kVocab});
      EXPECT_NEAR_TENSOR(output.logits(dense.hidden), expected, 1e-13);
    });
}

}  // namespace
}  // namespace megatron::parallel
