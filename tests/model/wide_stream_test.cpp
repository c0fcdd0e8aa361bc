#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "megatron/model/decoding/decode.h"
#include "megatron/model/decoding/token_step.h"
#include "megatron/model/stage_modules.h"
#include "tests/model/small_model.h"

// Models of bf16 whose residual stream is float32 (ModelShape::wide_stream), against plain ATen operators and the dense
// model.
namespace megatron::model {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::small;
using megatron::testing::StagedModel;
using megatron::testing::Tensors;

constexpr double kUnit = 0x1p-8;  // of bf16

TransformerOptions wide(std::int64_t num_layers, bool rms) {
  TransformerOptions options = small(num_layers);
  options.shape.wide_stream = true;
  options.shape.rms_norm = rms;
  return options;
}

/// Weights that bf16 has.
Tensors rounded_weights(const plan::ModelShape& shape) {
  Tensors weights = random_weights(shape, 5);
  for (auto& [name, value] : weights) value = value.detach().to(at::kBFloat16).to(at::kDouble).requires_grad_(true);
  return weights;
}

at::Tensor drawn(at::ScalarType type, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn({3, 2, 16}, generator, at::kFloat).to(type).requires_grad_(true);
}

TEST(WideStream, IsAddedToAndNormalizedInFloat32) {
  for (const bool rms : {false, true}) {
    const TransformerOptions options = wide(1, rms);
    const auto store = make_store(options.shape, 1, 0, rounded_weights(options.shape), at::kBFloat16);
    const std::string prefix = options.shape.layer_prefix(0);
    const Norm norm = norm_of(store, prefix + "pre_mlp_layernorm.", {1e-5, options.shape});
    const parallel::ParameterPtr bias = store.get(prefix + "self_attention.linear_proj.bias");
    const auto factor = norm.factor().to(at::kFloat).requires_grad_(true),
               added = bias->value.detach().to(at::kFloat).requires_grad_(true);
    const auto shift = rms ? at::Tensor() : norm.offset().to(at::kFloat).requires_grad_(true);
    const auto x = drawn(at::kBFloat16, 1), stream = drawn(at::kFloat, 2), x_ref = drawn(at::kBFloat16, 1),
               stream_ref = drawn(at::kFloat, 2), past = drawn(at::kFloat, 3).detach(),
               dy = drawn(at::kBFloat16, 4).detach();
    const Normed got = add_norm(x, bias, stream, {}, norm);
    const auto sum = stream_ref + (x_ref.to(at::kFloat) + added);
    const auto y = (rms ? sum * (sum * sum).mean(-1, true).add(1e-5).rsqrt() * factor
                        : at::layer_norm(sum, {16}, factor, shift, 1e-5))
                       .to(at::kBFloat16);
    EXPECT_EQ(got.residual.scalar_type(), at::kFloat);
    EXPECT_EQ(got.y.scalar_type(), at::kBFloat16);
    EXPECT_NEAR_TENSOR(got.residual, sum, 1e-6);
    EXPECT_NEAR_TENSOR(got.y, y, 4 * kUnit);
    EXPECT_TRUE(at::equal(got.recompute_fn(), got.y));
    ((got.residual * past).sum() + (got.y * dy).to(at::kFloat).sum()).backward();
    ((sum * past).sum() + (y * dy).to(at::kFloat).sum()).backward();
    EXPECT_NEAR_TENSOR(stream.grad(), stream_ref.grad(), 1e-5);
    EXPECT_NEAR_TENSOR(x.grad(), x_ref.grad(), 4 * kUnit);
    EXPECT_NEAR_TENSOR(norm.weight->grad, factor.grad(), 1e-4);
    if (!rms) {
      EXPECT_NEAR_TENSOR(norm.bias->grad, shift.grad(), 1e-4);
    }
    EXPECT_NEAR_TENSOR(bias->grad, added.grad(), 16 * kUnit);  // a sum of what the branch gets, which is bf16
  }
}

/// Distance of the model's last states from the dense model's in float64, root of the mean square.
double distance(const TransformerOptions& options, const Tensors& weights) {
  const auto batch = random_batch(10, 2, 7, at::kFloat);
  const auto store = make_store(options.shape, 1, 0, weights, at::kBFloat16);
  const auto parts = plan::parts_of_layers({options.shape.num_layers, 0});
  const auto got = TransformerStage(options, parts.front(), store, {}).forward({}, batch, false);
  EXPECT_EQ(got.scalar_type(), options.shape.wide_stream ? at::kFloat : at::kBFloat16);
  const auto dense = make_store(options.shape, 1, 0, weights);
  const auto expected = TransformerStage(options, parts.front(), dense, {}).forward({}, batch, false);
  return (got.to(at::kDouble) - expected).square().mean().sqrt().item<double>();
}

TEST(WideStream, LosesLessOfWhatManyLayersAddThanANarrowOne) {
  for (const bool rms : {false, true}) {
    TransformerOptions options = wide(16, rms);
    const Tensors weights = rounded_weights(options.shape);
    const double lost = distance(options, weights);
    options.shape.wide_stream = false;
    EXPECT_LT(lost, 0.8 * distance(options, weights)) << rms;
  }
}

TEST(WideStream, ChangesNothingWhereParametersAreAsWide) {
  TransformerOptions options = wide(2, true);
  const Tensors weights = rounded_weights(options.shape);
  const auto loss_of = [&](at::ScalarType dtype) {
    const StagedModel model(options, plan::parts_of_layers({2}), {}, weights, dtype);
    return model.step(random_batch(10, 2, 7, dtype)).sum;
  };
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    options.shape.wide_stream = true;
    const auto with = loss_of(dtype);
    options.shape.wide_stream = false;
    EXPECT_TRUE(at::equal(with, loss_of(dtype)));
  }
}

TEST(WideStream, GivesTheSameBitsInStages) {
  for (const bool rms : {false, true}) {
    const TransformerOptions options = wide(4, rms);
    const Tensors weights = rounded_weights(options.shape);
    const auto batch = random_batch(10, 2, 7, at::kFloat);
    const StagedModel whole(options, plan::parts_of_layers({4}), {}, weights, at::kBFloat16);
    const StagedModel cut(options, plan::parts_of_layers({1, 3}), {}, weights, at::kBFloat16);
    EXPECT_TRUE(at::equal(whole.step(batch).sum, cut.step(batch).sum));
    for (const auto& parameter : cut.stores[1].all())
      EXPECT_TRUE(at::equal(parameter->grad, whole.stores[0].get(parameter->spec.name)->grad) ||
                  parameter->spec.is_word_matrix())
          << parameter->spec.name;
  }
}

TEST(WideStream, GivesTheSameLogitsCachedAndUncached) {
  for (const bool rms : {false, true}) {
    const TransformerOptions options = wide(3, rms);
    const auto store = make_store(options.shape, 1, 0, rounded_weights(options.shape), at::kBFloat16);
    const auto batch = random_batch(10, 2, 7, at::kFloat);
    const auto whole = TransformerStage(options, store, {}).logits(batch);
    const CachedGpt cached(options, store, {});
    for (const std::int64_t step : {1, 3}) {
      auto cache = cached.make_cache(2, 7);
      for (std::int64_t seen = 0; seen + step <= 7; seen += step)
        EXPECT_NEAR_TENSOR(cached.forward(batch.tokens_bs.narrow(1, seen, step), cache),
                           whole.select(1, seen + step - 1), 16 * kUnit)
            << step << " at a time, after " << seen;
    }
  }
}

}  // namespace
}  // namespace megatron::model
