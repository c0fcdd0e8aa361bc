#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "megatron/optim/optimizer.h"
#include "megatron/plan/parameters/matrices.h"

namespace megatron::optim {
namespace {

using testing::ElementsAre;

constexpr double kMomentum = 0.9, kDecay = 0.1;

/// A layer's matrix, split by rows between `t` ranks, and an embedding.
std::vector<plan::ParameterSpec> specs(std::vector<std::int64_t> shape) {
  return {{.name = "embedding.word_embeddings.weight", .shape = {6, 5}, .init = plan::Init::Normal, .init_std = 1},
          {.name = "decoder.layers.0.mlp.linear_fc2.weight",
           .shape = std::move(shape),
           .init = plan::Init::Normal,
           .init_std = 1,
           .depth = 1}};
}

at::Tensor gradient_of(const plan::ParameterSpec& spec, int step) {
  return (at::arange(spec.size(), at::kDouble) * 0.7 + step).cos().view(spec.shape);
}

/// Newton's and Schulz's steps seen by the singular values: s -> a s + b s^3 + c s^5, the vectors stay.
at::Tensor orthogonalized(const at::Tensor& matrix) {
  const auto [u, s, vh] = at::linalg_svd(matrix / matrix.norm(), /*full_matrices=*/false);
  at::Tensor values = s;
  for (int step = 0; step < 5; ++step) values = 3.4445 * values - 4.7750 * values.pow(3) + 2.0315 * values.pow(5);
  return at::matmul(u * values, vh);
}

void follow_the_paper(const std::vector<std::int64_t>& shape) {
  const auto all = specs(shape);
  const parallel::ParameterStore store(all, plan::buffer_layout(all, 0), at::kDouble, at::kCPU, 7);
  const plan::ModelShape model{.num_layers = 1, .hidden = 8, .num_heads = 2, .ffn_hidden = 8};
  Optimizer optimizer(store, plan::shards(store.layout(), 1, 0), {.name = "muon", .muon_momentum = kMomentum},
                      {.weight_decay = kDecay, .matrices = {{}, plan::matrices_of(all[1], model)}});
  const auto& matrix = *store.all()[1];
  at::Tensor want = matrix.value.detach().clone(), momentum = at::zeros_like(want);
  for (int step = 1; step <= 3; ++step) {
    for (const auto& parameter : store.all()) parameter->grad.copy_(gradient_of(parameter->spec, step));
    optimizer.step(0.01, 0.25);
    const at::Tensor gradient = gradient_of(all[1], step) * 0.25;
    momentum = momentum * kMomentum + gradient;
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(shape[0], shape[1])));
    want = want * (1 - 0.01 * kDecay) - 0.01 * scale * orthogonalized(gradient + momentum * kMomentum);
    EXPECT_LE((matrix.value.detach() - want).abs().max().item<double>(), 1e-9) << "step " << step;
  }
}

TEST(Muon, FollowsThePaper) {
  follow_the_paper({4, 7});
  follow_the_paper({8, 5});
}

/// As NVIDIA's Emerging-Optimizers publishes it: the momentum is a mean of gradients, and Nesterov's step mixes the
/// gradient into it. The steps of Newton and Schulz are followed by the singular values, with the coefficients of each.
void follow_emerging_optimizers(const config::OptimizerConfig& options,
                                const std::vector<std::array<double, 3>>& coefficients, double scale, bool nesterov) {
  const auto all = specs({8, 5});
  const parallel::ParameterStore store(all, plan::buffer_layout(all, 0), at::kDouble, at::kCPU, 7);
  const plan::ModelShape model{.num_layers = 1, .hidden = 5, .num_heads = 1, .ffn_hidden = 8};
  Optimizer optimizer(store, plan::shards(store.layout(), 1, 0), options,
                      {.weight_decay = kDecay, .matrices = {{}, {{{0, 8}}}}});
  const auto& matrix = *store.all()[1];
  at::Tensor want = matrix.value.detach().clone(), momentum = at::zeros_like(want);
  for (int step = 1; step <= 3; ++step) {
    for (const auto& parameter : store.all()) parameter->grad.copy_(gradient_of(parameter->spec, step));
    optimizer.step(0.01, 1);
    const at::Tensor gradient = gradient_of(all[1], step);
    momentum = momentum + (gradient - momentum) * (1 - kMomentum);
    const at::Tensor direction = nesterov ? gradient + (momentum - gradient) * kMomentum : momentum;
    const auto [u, s, vh] = at::linalg_svd(direction / direction.norm(), /*full_matrices=*/false);
    at::Tensor values = s;
    for (const auto& [a, b, c] : coefficients) values = a * values + b * values.pow(3) + c * values.pow(5);
    want = want * (1 - 0.01 * kDecay) - 0.01 * scale * at::matmul(u * values, vh);
    EXPECT_LE((matrix.value.detach() - want).abs().max().item<double>(), 1e-9) << "step " << step;
  }
}

TEST(Muon, FollowsEmergingOptimizers) {
  config::OptimizerConfig options{
      .name = "muon", .muon_momentum = kMomentum, .muon_num_ns_steps = 6, .muon_extra_scale_factor = 0.5};
  options.muon_nesterov = false;
  options.muon_coefficient_type = "quintic";
  const std::vector<std::array<double, 3>> quintic = {
      {4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377}, {3.7418, -5.5913, 2.3037},
      {2.8769, -3.1427, 1.2046}, {2.8366, -3.0525, 1.2012}, {4.0848, -6.8946, 2.9270}};  // and again from the first
  follow_emerging_optimizers(options, quintic, 0.5 * std::sqrt(8.0), false);
  options.muon_nesterov = true;
  options.muon_scale_mode = "unit_rms_norm";
  follow_emerging_optimizers(options, quintic, 0.5 * std::sqrt(8.0 / 5.0), true);
  options.muon_scale_mode = "shape_scaling";
  options.muon_coefficient_type = "cans";
  const std::vector<std::array<double, 3>> cans = {
      {8.4703, -25.1081, 18.6293}, {4.1828, -3.1087, 0.5806}, {3.9619, -2.9541, 0.5630},
      {3.2866, -2.4647, 0.5074},   {2.2737, -1.6447, 0.4162}, {2.2737, -1.6447, 0.4162}};  // the last is kept
  follow_emerging_optimizers(options, cans, 0.5 * std::sqrt(8.0 / 5.0), true);
}

TEST(Muon, KeepsOneNumberOfAMatrixAndTwoOfTheRest) {
  const auto all = specs({4, 7});
  const parallel::ParameterStore store(all, plan::buffer_layout(all, 0), at::kFloat, at::kCPU, 7);
  const Optimizer optimizer(store, plan::shards(store.layout(), 1, 0), {.name = "muon"}, {});
  EXPECT_EQ(optimizer.bytes(), 4 * (28 + 2 * 30));
  EXPECT_THAT(optimizer.kinds(), ElementsAre("momentum_buffer", "exp_avg", "exp_avg_sq"));
}

TEST(Matrices, OfAFusedTensorTakeTurns) {
  const plan::ModelShape shape{
      .num_layers = 1, .hidden = 8, .num_heads = 4, .ffn_hidden = 6, .num_groups = 2, .gated = true};
  const auto of = [&](const char* name, std::int64_t rows) {
    return plan::matrices_of({.name = std::string("decoder.layers.0.") + name, .shape = {rows, 8}, .depth = 1}, shape);
  };
  using R = plan::Range;
  EXPECT_THAT(
      of("self_attention.linear_qkv.weight", 16),  // two groups of two queries, a key and a value, 2 rows each
      ElementsAre(ElementsAre(R{0, 4}, R{8, 12}), ElementsAre(R{4, 6}, R{12, 14}), ElementsAre(R{6, 8}, R{14, 16})));
  EXPECT_THAT(of("mlp.linear_fc1.weight", 12), ElementsAre(ElementsAre(R{0, 6}), ElementsAre(R{6, 12})));
  EXPECT_THAT(of("mlp.linear_fc2.weight", 8), ElementsAre(ElementsAre(R{0, 8})));
  const auto whole = [&](const char* name, std::int64_t rows, plan::MatrixSplits splits) {
    return plan::matrices_of({.name = std::string("decoder.layers.0.") + name, .shape = {rows, 8}, .depth = 1}, shape,
                             splits);
  };
  EXPECT_THAT(whole("self_attention.linear_qkv.weight", 16, {.qkv = false}), ElementsAre(ElementsAre(R{0, 16})));
  EXPECT_EQ(whole("self_attention.linear_qkv.weight", 16, {.gated = false}).size(), 3u);
  EXPECT_THAT(whole("mlp.linear_fc1.weight", 12, {.gated = false}), ElementsAre(ElementsAre(R{0, 12})));
  EXPECT_EQ(whole("mlp.linear_fc1.weight", 12, {.qkv = false}).size(), 2u);
}

}  // namespace
}  // namespace megatron::optim
