#include "megatron/model/transformer_stage.h"

#include <gmock/gmock.h>

#include "megatron/base/error.h"
#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/backward.h"
#include "tests/model/small_model.h"

namespace megatron::model {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::slice_of;
using megatron::testing::small;
using megatron::testing::Tensors;
using megatron::testing::variants;
using megatron::testing::whole_gradient;

/// Sample 1 holds two documents: the second begins at `start`, with positions and attention of its own; padding
/// follows.
void pack_documents(Batch& batch, std::int64_t start) {
  const std::int64_t b = batch.tokens_bs.size(0), s = batch.tokens_bs.size(1);
  batch.position_ids_bs = at::arange(s, at::kLong).expand({b, s}).contiguous();
  batch.first_key_bs = at::zeros({b, s}, at::kInt);
  batch.position_ids_bs[1].slice(0, start).sub_(start);
  batch.first_key_bs[1].slice(0, start).fill_(start);
  batch.key_lengths_b = at::full({b}, s, at::kInt);
  batch.key_lengths_b[1] -= 1;
}

/// The model's loss and gradients on `t` ranks against the dense model's.
void expect_matches_dense(const TransformerOptions& options, const Batch& batch, int t) {
  const auto weights = random_weights(options.shape, 9);
  const auto loss = DenseModel(options, weights).loss_sum(batch, true);
  loss.backward();
  comm::run_ranks(t, [&](comm::Group tp) {
    const auto store = make_store(options.shape, t, tp.rank(), weights);
    store.gradients().fill_(std::numeric_limits<double>::quiet_NaN());
    const TransformerStage gpt(options, store, tp);
    const auto got = gpt.loss(batch, true);
    EXPECT_NEAR_TENSOR(got.sum, loss, 1e-12);
    EXPECT_EQ(got.count, batch.loss_mask_bs.sum().item<double>());
    got.sum.backward();
    for (const auto& p : store.all()) {
      const auto expected = weights.at(p->spec.name).grad();
      EXPECT_NEAR_TENSOR(whole_gradient(*p, tp), slice_of(expected, p->spec), 1e-11)
          << p->spec.name << " on rank " << tp.rank();
      EXPECT_EQ(p->contributions(), p->spec.gradient_uses) << p->spec.name;
    }
  });
}

class Tp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Tp, ::testing::Values(1, 2, 4));

TEST_P(Tp, LossAndEveryGradientMatchTheDenseModel) { expect_matches_dense(small(), random_batch(10), GetParam()); }

TEST_P(Tp, MatchesTheDenseModelWithDropoutPackedDocumentsAndLabelSmoothing) {
  auto options = small();
  options.hidden_dropout = 0.2;
  options.attention_dropout = 0.3;
  options.label_smoothing = 0.1;
  auto batch = random_batch(10);
  pack_documents(batch, 3);
  expect_matches_dense(options, batch, GetParam());
}

TEST_P(Tp, MatchesTheDenseModelWithAnOutputLayerOfItsOwnExactGeluAndNothingRecomputed) {
  auto options = small();
  options.shape.tied_output = false;
  options.activation = kernels::Activation::GeluErf;
  options.recompute.gelu = false;
  options.loss_chunk_tokens = 0;
  expect_matches_dense(options, random_batch(10), GetParam());
}

TEST_P(Tp, OtherKindsOfLayersMatchTheDenseModel) {
  for (auto& [name, options] : variants()) {
    SCOPED_TRACE(name);
    auto batch = random_batch(10);
    expect_matches_dense(options, batch, GetParam());
    options.hidden_dropout = options.attention_dropout = 0.2;
    pack_documents(batch, 3);
    expect_matches_dense(options, batch, GetParam());
  }
}

/// The error of `got` as a share of `want`.
double share(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).norm().item<double>() / want.norm().item<double>();
}

/// Parameters and activations of `dtype`, with dropout, against the dense model in double precision.
void expect_half_precision_follows_dense(TransformerOptions options, at::ScalarType dtype, double tolerance, int t) {
  options.hidden_dropout = options.attention_dropout = 0.1;
  // The slope of max(x, 0) jumps: rounding an x near 0 changes gradients by any amount.
  if (options.activation == kernels::Activation::Relu) options.activation = kernels::Activation::Silu;
  auto weights = random_weights(options.shape, 9);
  for (auto& [name, weight] : weights) weight = weight.detach().to(dtype).to(at::kDouble).requires_grad_(true);
  auto batch = random_batch(10);
  const auto loss = DenseModel(options, weights).loss_sum(batch, true);
  loss.backward();
  batch.loss_mask_bs = batch.loss_mask_bs.to(at::kFloat);
  comm::run_ranks(t, [&](comm::Group tp) {
    const auto store = make_store(options.shape, t, tp.rank(), weights, dtype);
    constexpr double kScale = 1024;  // as fp16 needs it
    const auto got = TransformerStage(options, store, tp).loss({}, batch, true, kScale);
    EXPECT_EQ(got.sum.scalar_type(), at::kDouble);
    EXPECT_LE(share(got.sum, loss.detach()), tolerance);
    got.sum.backward();
    ASSERT_EQ(store.gradients().scalar_type(), at::kFloat);
    double error = 0, whole = 0;
    for (const auto& p : store.all()) {
      const auto expected = slice_of(weights.at(p->spec.name).grad(), p->spec);
      const double part = share(whole_gradient(*p, tp) / kScale, expected), norm = expected.norm().item<double>();
      EXPECT_LE(part, 24 * tolerance) << p->spec.name << " on rank " << tp.rank();
      error += part * part * norm * norm;
      whole += norm * norm;
    }
    EXPECT_LE(std::sqrt(error / whole), 8 * tolerance) << "of all gradients, on rank " << tp.rank();
  });
}

TEST_P(Tp, InHalfPrecisionFollowsTheDenseModel) {
  auto all = variants();
  all.emplace_back("gpt2", small());
  for (const auto& [name, options] : all) {
    SCOPED_TRACE(name);
    expect_half_precision_follows_dense(options, at::kBFloat16, 0.01, GetParam());
    expect_half_precision_follows_dense(options, at::kHalf, 0.003, GetParam());
  }
}

void expect_the_same_in_every_layout(TransformerOptions options) {
  options.hidden_dropout = options.attention_dropout = 0.1;
  const auto batch = random_batch(10);
  Tensors gradients;
  double loss = 0;
  for (const int t : {1, 2, 4})
    comm::run_ranks(t, [&](comm::Group tp) {
      const auto store = make_store(options.shape, t, tp.rank());
      const auto got = TransformerStage(options, store, tp).loss(batch, true);
      got.sum.backward();
      if (t == 1) loss = got.sum.item<double>();
      EXPECT_NEAR(got.sum.item<double>(), loss, 1e-12 * std::abs(loss)) << "tp " << t;
      for (const auto& p : store.all()) {
        if (t == 1) gradients[p->spec.name] = p->grad.clone();
        EXPECT_NEAR_TENSOR(whole_gradient(*p, tp), slice_of(gradients.at(p->spec.name), p->spec), 1e-12)
            << p->spec.name;
      }
    });
}

TEST(TransformerStage, SameSeedGivesTheSameLossAndGradientsInEveryLayout) {
  expect_the_same_in_every_layout(small());
  for (const auto& [name, options] : variants()) {
    SCOPED_TRACE(name);
    expect_the_same_in_every_layout(options);
  }
}

TEST(TransformerStage, DropoutIsThatOfTheSampleWhereverItIsInTheBatch) {
  auto options = small();
  options.hidden_dropout = options.attention_dropout = 0.3;
  const auto store = make_store(options.shape, 1, 0);
  const TransformerStage gpt(options, store, {});
  const auto both = random_batch(10);
  double sum = 0;
  for (const std::int64_t k : {1, 0}) {
    Batch one;
    for (auto field : {&Batch::tokens_bs, &Batch::labels_bs, &Batch::loss_mask_bs, &Batch::sample_ids})
      one.*field = (both.*field).narrow(0, k, 1);
    sum += gpt.loss(one, true).sum.item<double>();
  }
  EXPECT_NEAR(gpt.loss(both, true).sum.item<double>(), sum, 1e-12 * sum);
  auto other = both;
  other.sample_ids = both.sample_ids + 1;
  EXPECT_GT(std::abs(gpt.loss(other, true).sum.item<double>() - sum), 1e-6 * sum);
}

TEST(TransformerStage, MakesTwoAllReducesALayerEachWay) {
  const auto batch = random_batch(10, 2, 5);  // ten tokens: two chunks of the loss
  const auto counted = [&](std::int64_t layers) {
    auto options = small();
    options.shape.num_layers = layers;
    std::pair<std::int64_t, std::int64_t> calls;
    comm::run_ranks(2, [&](comm::Group world) {
      const auto tp = comm::CountingBackend::wrap(world);
      const auto all_reduces = [&] { return comm::CountingBackend::of(tp).count("all_reduce").calls; };
      const auto store = make_store(options.shape, 2, world.rank());
      const auto loss = TransformerStage(options, store, tp).loss(batch, true);
      const auto forward = all_reduces();
      loss.sum.backward();
      if (world.rank() == 0) calls = {forward, all_reduces() - forward};
    });
    return calls;
  };
  const auto [forward, backward] = counted(0);
  EXPECT_EQ(forward, 1 + 2 * 2 + 1);  // embedding, two a chunk, d hidden
  EXPECT_EQ(backward, 0);
  for (const std::int64_t layers : {1, 3}) {
    EXPECT_EQ(counted(layers).first, forward + 2 * layers);
    EXPECT_EQ(counted(layers).second, 2 * layers);
  }
}

TEST(TransformerStage, AddsTheGradientsOfMicrobatches) {
  const auto options = small();
  const auto store = make_store(options.shape, 1, 0);
  const TransformerStage gpt(options, store, {});
  const auto batch = random_batch(10);
  gpt.loss(batch, true).sum.backward();
  const auto once = store.gradients().clone();
  gpt.loss(batch, true).sum.backward();
  EXPECT_NEAR_TENSOR(store.gradients(), once * 2, 1e-13);
}

TEST(TransformerStage, EvaluationDropsNothingRecordsNothingAndWritesNothing) {
  auto options = small();
  options.hidden_dropout = options.attention_dropout = 0.5;
  const auto weights = random_weights(options.shape, 4);
  const auto store = make_store(options.shape, 1, 0, weights);
  const TransformerStage gpt(options, store, {});
  const auto batch = random_batch(10);
  const auto loss = gpt.loss(batch, false);
  EXPECT_NEAR_TENSOR(loss.sum, DenseModel(options, weights).loss_sum(batch, false), 1e-12);
  EXPECT_FALSE(loss.sum.requires_grad());
  parallel::without_autograd([&] { return gpt.loss(batch, true); });
  EXPECT_EQ(store.gradients().count_nonzero().item<std::int64_t>(), 0);
  for (const auto& p : store.all()) EXPECT_EQ(p->contributions(), 0) << p->spec.name;
}

TEST(TransformerStage, LogitsAreThoseOfTheWholeVocabularyInEveryLayout) {
  const auto options = small();
  const auto weights = random_weights(options.shape, 4);
  const auto batch = random_batch(10);
  const auto expected = DenseModel(options, weights).logits(batch, false);
  for (const int t : {1, 2, 4})
    comm::run_ranks(t, [&](comm::Group tp) {
      const auto store = make_store(options.shape, t, tp.rank(), weights);
      EXPECT_NEAR_TENSOR(TransformerStage(options, store, tp).logits(batch), expected, 1e-12) << "tp " << t;
    });
}

TEST(TransformerStage, RefusesPositionsPastTheLearnedOnes) {
  const auto options = small();
  const auto store = make_store(options.shape, 1, 0);
  try {
    TransformerStage(options, store, {}).loss(random_batch(10, 1, 9), true);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("position id 8 at position 8 of sample 0"));
  }
}

TEST(TransformerStage, RefusesPositionsPastTheRotaryOnes) {
  const auto options = variants()[0].second;
  const auto store = make_store(options.shape, 1, 0);
  const TransformerStage gpt(options, store, {});
  EXPECT_THROW(gpt.loss(random_batch(10, 1, 9), true), ConfigError);
  auto batch = random_batch(10, 1, 4);
  for (const std::int64_t outside : {-1, 8}) {
    batch.position_ids_bs = at::arange(4, at::kLong).unsqueeze(0).clone();
    batch.position_ids_bs[0][2].fill_(outside);
    EXPECT_THROW(gpt.loss(batch, true), ConfigError) << outside;
  }
  batch.position_ids_bs[0][2].fill_(7);
  EXPECT_NO_THROW(gpt.loss(batch, true));
}

}  // namespace
}  // namespace megatron::model
