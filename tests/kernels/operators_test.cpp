#include "megatron/kernels/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "compare.h"
#include "isa.h"
#include "megatron/base/error.h"

// Every table against the reference: a device that fills a member is tested by the cases here without another line.
namespace megatron::kernels {
namespace {

using Outputs = std::vector<at::Tensor>;
using Case = std::function<Outputs(const Operators&, at::ScalarType)>;

constexpr auto kForm = Activation::GeluTanh;

/// Numbers between -1 and 1, all different.
at::Tensor data(at::IntArrayRef shape, at::ScalarType dtype, double seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return (at::arange(count, at::kDouble) * 0.37 + seed).sin().view(shape).to(dtype);
}

at::ScalarType wide_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

Dropout dropout() { return {.p = 0.25, .key = 11, .sample_ids = at::arange(3, at::kLong) + 5}; }

Fp8Scale fp8_scale() { return {at::full({}, 64.0, at::kFloat), at::full({}, 1.0 / 64, at::kFloat)}; }

Outputs of(const NormOutput& out) { return {out.y, out.mean, out.rstd}; }
Outputs of(const AddNormOutput& out) { return {out.sum, out.y, out.mean, out.rstd}; }

/// x [s, b, h] and vectors [h].
constexpr std::int64_t kS = 5, kB = 3, kH = 40;
at::Tensor sbh(at::ScalarType t, double seed) { return data({kS, kB, kH}, t, seed); }
at::Tensor h(at::ScalarType t, double seed) { return data({kH}, t, seed); }
at::Tensor rows(at::ScalarType t, double seed) { return data({kS * kB}, wide_type(t), seed).abs() + 0.5; }

/// An update of 70 elements: what it wrote.
template <class Step>
Outputs updated(at::ScalarType t, const Step& step) {
  const Update update{.learning_rate = 0.1, .weight_decay = 0.01, .grad_scale = 0.5, .step = 3};
  const at::ScalarType stored = t == at::kHalf ? at::kHalf : at::kBFloat16;  // beside wider parameters
  const at::Tensor param = data({70}, wide_type(t), 1), model = data({70}, stored, 2), grad = data({70}, t, 3),
                   first = data({70}, wide_type(t), 4), second = data({70}, wide_type(t), 5).abs();
  step(param, model, grad, first, second, update);
  return {param, model, first, second};
}

Groups groups(at::ScalarType type, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& shape,
              bool biased = false) {
  Groups all{.weights = {}, .offsets = offsets};
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    all.weights.push_back(data(shape, type, 10 + static_cast<int>(g)));
    if (biased) all.biases.push_back(data({shape.front()}, type, 20 + static_cast<int>(g)));
  }
  return all;
}

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all = {
      {"bias_activation",
       [](auto& o, auto t) {
         const at::Tensor x = sbh(t, 1);
         return Outputs{o.bias_activation(x, h(t, 2), kForm), x};
       }},
      {"activation_backward",
       [](auto& o, auto t) { return Outputs{o.activation_backward(sbh(t, 1), sbh(t, 2), kForm)}; }},
      {"activation", [](auto& o, auto t) { return Outputs{o.activation(sbh(t, 1), kForm)}; }},
      {"bias_gated_activation",
       [](auto& o, auto t) {
         const at::Tensor x = sbh(t, 1);
         return Outputs{o.bias_gated_activation(x, h(t, 2), kForm), x};
       }},
      {"gated_activation_backward",
       [](auto& o, auto t) {
         return Outputs{o.gated_activation_backward(data({kS, kB, kH / 2}, t, 1), sbh(t, 2), kForm)};
       }},
      {"gated_activation", [](auto& o, auto t) { return Outputs{o.gated_activation(sbh(t, 1), kForm)}; }},
      {"attention",
       [](auto& o, auto t) {
         const at::Tensor q = data({kS, kB, 2, 2, 8}, t, 1), k = data({kS, kB, 2, 8}, t, 2),
                          v = data({kS, kB, 2, 8}, t, 3);
         const AttentionOutput out = o.attention(q, k, v, {.dropout = dropout()});
         return Outputs{out.out, out.logsumexp};
       }},
      {"attention_over_blocks",
       [](auto& o, auto t) {
         const at::Tensor q = data({kS, 1, 2, 2, 8}, t, 1), k = data({4, 64, 2, 8}, t, 2),
                          v = data({4, 64, 2, 8}, t, 3), blocks = at::arange(3, at::kLong).mul(2).remainder(3);
         const AttentionOutput out = o.attention_over_blocks(q, k, v, blocks, 150, {});
         return Outputs{out.out, out.logsumexp};
       }},
      {"attention_backward",
       [](auto& o, auto t) {
         const at::Tensor q = data({kS, kB, 2, 2, 8}, t, 1), k = data({kS, kB, 2, 8}, t, 2),
                          v = data({kS, kB, 2, 8}, t, 3);
         const AttentionOptions options{.dropout = dropout()};
         const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
         const AttentionOutput out = reference_operators().attention(q, k, v, options);
         o.attention_backward(data({kS, kB, 4, 8}, t, 4), q, k, v, out, options, dq, dk, dv, {});
         return Outputs{dq, dk, dv};
       }},
      {"rotate_",
       [](auto& o, auto t) {
         const at::Tensor heads = data({kS, kB, 2, 8}, t, 1);
         o.rotate_(heads, rope_table({.rotary_dim = 8}, 16, t, at::kCPU), {}, 2, false);
         return Outputs{heads};
       }},
      {"linear",
       [](auto& o, auto t) {
         return Outputs{o.linear(sbh(t, 1), data({24, kH}, t, 2), nullptr, data({24}, t, 3))};
       }},
      {"linear_activation",
       [](auto& o, auto t) {
         const auto plain =
             o.linear_activation(sbh(t, 1), data({24, kH}, t, 2), data({24}, t, 3), kForm, false, nullptr);
         const auto gated = o.linear_activation(sbh(t, 1), data({24, kH}, t, 2), {}, Activation::Silu, true, nullptr);
         return Outputs{plain.u, plain.y, gated.u, gated.y};
       }},
      {"linear_activation_gradient",
       [](auto& o, auto t) {
         const at::Tensor dz = data({kS, kB, 24}, t, 1), w = data({24, kH}, t, 2), wide = data({kS, kB, 2 * kH}, t, 3);
         const auto plain = o.linear_activation_gradient(dz, w, sbh(t, 3), kForm, false, true, nullptr);
         const auto gated = o.linear_activation_gradient(dz, w, wide, Activation::Silu, true, true, nullptr);
         return Outputs{plain.u, plain.y, gated.u, gated.y};
       }},
      {"linear_input_gradient",
       [](auto& o, auto t) {
         return Outputs{o.linear_input_gradient(data({kS, kB, 24}, t, 1), data({24, kH}, t, 2), nullptr)};
       }},
      {"linear_weight_gradient",
       [](auto& o, auto t) {
         const at::Tensor grad = data({24, kH}, wide_type(t), 3);
         o.linear_weight_gradient(grad, data({kS, kB, 24}, t, 1), sbh(t, 2), 1);
         return Outputs{grad};
       }},
      {"linear_gradients",
       [](auto& o, auto t) {
         const at::Tensor grad = data({24, kH}, wide_type(t), 3), bias = data({24}, wide_type(t), 4);
         o.linear_gradients(grad, data({kS, kB, 24}, t, 1), sbh(t, 2), 0, bias, 1);
         return Outputs{grad, bias};
       }},
      {"grouped_linear",
       [](auto& o, auto t) {
         const at::Tensor x = data({kS, kH}, t, 1);
         return Outputs{o.grouped_linear(x, groups(t, {0, 0, 3, kS}, {24, kH})),
                        o.grouped_linear(x, groups(t, {0, 0, 3, kS}, {24, kH}, true))};
       }},
      {"grouped_linear_activation",
       [](auto& o, auto t) {
         // Groups without rows, of few, and of as many as take other ways.
         const Groups into = groups(t, {0, 0, 3, 44}, {2 * kH, kH});
         const auto plain = o.grouped_linear_activation(data({44, kH}, t, 1), into, kForm, false);
         const auto gated = o.grouped_linear_activation(data({44, kH}, t, 1), into, Activation::Silu, true);
         const auto biased = o.grouped_linear_activation(
             data({44, kH}, t, 1), groups(t, {0, 0, 3, 44}, {2 * kH, kH}, true), Activation::Silu, true);
         return Outputs{plain.u, plain.y, gated.u, gated.y, biased.u, biased.y};
       }},
      {"weighted_activation_backward",
       [](auto& o, auto t) {
         const at::Tensor dy = data({kS, kH}, t, 1), weights = data({kS}, wide_type(t), 2);
         const auto plain = o.weighted_activation_backward(dy, data({kS, kH}, t, 3), weights, kForm, false);
         const auto gated =
             o.weighted_activation_backward(dy, data({kS, 2 * kH}, t, 3), weights, Activation::Silu, true);
         const auto unweighted =
             o.weighted_activation_backward(dy, data({kS, 2 * kH}, t, 3), {}, Activation::Silu, true);
         const auto clamped = o.weighted_activation_backward(dy, data({kS, 2 * kH}, t, 3), weights,
                                                             Activation(Activation::QuickGelu, 0.75, 1), true);
         return Outputs{plain.du,      plain.y,      plain.weights,      gated.du,   gated.y,   gated.weights,
                        unweighted.du, unweighted.y, unweighted.weights, clamped.du, clamped.y, clamped.weights};
       }},
      {"combined_rows",
       [](auto& o, auto t) {
         const at::Tensor from = data({kS, kH}, t, 1), index = (at::arange(12, at::kLong) * 7 % 6 - 1).view({4, 3});
         return Outputs{o.combined_rows(from, index, data({4, 3}, wide_type(t), 2)), o.combined_rows(from, index, {})};
       }},
      {"grouped_input_gradient",
       [](auto& o, auto t) {
         return Outputs{o.grouped_input_gradient(data({kS, 24}, t, 1), groups(t, {0, 2, kS, kS}, {24, kH}))};
       }},
      {"grouped_weight_gradient",
       [](auto& o, auto t) {
         const Groups into = groups(wide_type(t), {0, 0, 3, kS}, {24, kH});
         o.grouped_weight_gradient(into, data({kS, 24}, t, 1), data({kS, kH}, t, 2), {0, 1, 0});
         return into.weights;
       }},
      {"fp8_magnitude",
       [](auto& o, auto t) {
         const at::Tensor seen = at::zeros({});
         return Outputs{o.fp8_magnitude(sbh(t, 1), seen), seen};
       }},
      {"fp8_scale_of",
       [](auto& o, auto) {
         const Fp8Scale scale = o.fp8_scale_of(data({kH}, at::kFloat, 1).abs(), at::kFloat8_e5m2);
         return Outputs{scale.scale, scale.inverse};
       }},
      {"fp8_numbers",
       [](auto& o, auto t) {
         const auto both = o.fp8_numbers(sbh(t, 1), at::kFloat8_e4m3fn, fp8_scale(), {.turned = true}, {});
         return Outputs{both.rows, both.turned};
       }},
      {"fp8_rounded",
       [](auto& o, auto t) { return Outputs{o.fp8_rounded(sbh(t, 1), at::kFloat8_e5m2, fp8_scale(), {})}; }},
      {"fp8_matrices",
       [](auto& o, auto t) {
         const auto both = o.fp8_matrices(data({64, 3, 96}, t, 1), at::kFloat8_e4m3fn, 32, false, {.turned = true});
         return Outputs{both.rows.numbers, both.rows.inverse, both.turned.numbers, both.turned.inverse};
       }},
      {"fp8_rounded_in_blocks",
       [](auto& o, auto t) {
         return Outputs{o.fp8_rounded_in_blocks(sbh(t, 1), at::kFloat8_e4m3fn, {Fp8Tile::Along::First, 32})};
       }},
      {"layer_norm", [](auto& o, auto t) { return of(o.layer_norm(sbh(t, 1), h(t, 2), h(t, 3), 1e-5)); }},
      {"layer_norm_backward",
       [](auto& o, auto t) {
         const at::Tensor weight = h(wide_type(t), 7), bias = h(wide_type(t), 8);
         const at::Tensor dx =
             o.layer_norm_backward(sbh(t, 1), sbh(t, 2), rows(t, 3), rows(t, 4), h(t, 5), weight, bias, 1, sbh(t, 6));
         return Outputs{dx, weight, bias};
       }},
      {"rms_norm", [](auto& o, auto t) { return of(o.rms_norm(sbh(t, 1), h(t, 2), 1e-5)); }},
      {"rms_norm_backward",
       [](auto& o, auto t) {
         const at::Tensor weight = h(wide_type(t), 7);
         const at::Tensor dx = o.rms_norm_backward(sbh(t, 1), sbh(t, 2), rows(t, 4), h(t, 5), weight, 0, at::Tensor());
         return Outputs{dx, weight};
       }},
      {"bias_dropout_add",
       [](auto& o, auto t) { return Outputs{o.bias_dropout_add(sbh(t, 1), h(t, 2), sbh(t, 3), dropout())}; }},
      {"bias_dropout_add_norm",
       [](auto& o, auto t) {
         return of(o.bias_dropout_add_norm(sbh(t, 1), h(t, 2), sbh(t, 3), dropout(), h(t, 4), h(t, 5), 1e-5));
       }},
      {"bias_dropout_add_rms_norm",
       [](auto& o, auto t) {
         return of(o.bias_dropout_add_rms_norm(sbh(t, 1), h(t, 2), sbh(t, 3), dropout(), h(t, 4), 1e-5));
       }},
      {"bias_dropout_add_norm_backward",
       [](auto& o, auto t) {
         const AddNormGradients into{h(wide_type(t), 6), h(wide_type(t), 7), h(wide_type(t), 8), 1, 0};
         const auto dx = o.bias_dropout_add_norm_backward(sbh(t, 1), sbh(t, 2), rows(t, 3), rows(t, 4), h(t, 5),
                                                          sbh(t, 9), dropout(), into);
         return Outputs{dx.residual, dx.x, into.weight, into.norm_bias, into.bias};
       }},
      {"accumulate_bias_gradient",
       [](auto& o, auto t) {
         const at::Tensor bias = h(wide_type(t), 1);
         o.accumulate_bias_gradient(bias, sbh(t, 2), 1);
         return Outputs{bias};
       }},
      {"dropout_backward", [](auto& o, auto t) { return Outputs{o.dropout_backward(sbh(t, 1), dropout())}; }},
      {"dropout_mask", [](auto& o, auto t) { return Outputs{o.dropout_mask(dropout(), kS, kB, kH, t, at::kCPU)}; }},
      {"attention_dropout_mask",
       [](auto& o, auto t) { return Outputs{o.attention_dropout_mask(dropout(), kB, 2, 1, kS, 7, t, at::kCPU)}; }},
      {"embedding",
       [](auto& o, auto t) {
         return Outputs{o.embedding(at::arange(12, at::kLong).view({3, 4}), data({6, kH}, t, 1), 3)};
       }},
      {"embedding_backward",
       [](auto& o, auto t) {
         const at::Tensor grad = data({6, kH}, wide_type(t), 1);
         o.embedding_backward(grad, (at::arange(12, at::kLong) % 7).view({3, 4}), data({3, 4, kH}, t, 2), 2);
         return Outputs{grad};
       }},
      {"softmax_pieces",
       [](auto& o, auto t) {
         const SoftmaxPieces out =
             o.softmax_pieces(data({6, kH}, t, 1), at::arange(6, at::kLong) * 9, {10, 45, 90}, true);
         return Outputs{out.max, out.sum_exp, out.target, out.sum};
       }},
      {"cross_entropy_gradient_",
       [](auto& o, auto t) {
         const at::Tensor logits = data({6, kH}, t, 1);
         o.cross_entropy_gradient_(logits, at::arange(6, at::kLong) * 9, {10, 45, 90}, data({6}, wide_type(t), 2) + 4,
                                   data({6}, wide_type(t), 3), 0.1);
         return Outputs{logits};
       }},
      {"adam_",
       [](auto& o, auto t) {
         return updated(t, [&](auto& p, auto& m, auto& g, auto& first, auto& second, auto& update) {
           o.adam_(p, m, g, first, second, {}, update);
         });
       }},
      {"sgd_",
       [](auto& o, auto t) {
         return updated(t, [&](auto& p, auto& m, auto& g, auto& first, auto&, auto& update) {
           o.sgd_(p, m, g, first, 0.9, update);
         });
       }},
      {"lion_",
       [](auto& o, auto t) {
         return updated(t, [&](auto& p, auto& m, auto& g, auto& first, auto&, auto& update) {
           o.lion_(p, m, g, first, {}, update);
         });
       }},
      {"round_",
       [](auto& o, auto t) {
         return updated(t, [&](auto& p, auto& m, auto&, auto&, auto&, auto& update) { o.round_(m, p, update); });
       }},
      {"sum_of_squares", [](auto& o, auto t) { return Outputs{o.sum_of_squares({sbh(t, 1), h(t, 2)})}; }},
      {"max_abs", [](auto& o, auto t) {
         return Outputs{o.max_abs({sbh(t, 1), h(t, 2)})};
       }}};
  return all;
}

class OperatorTable : public OnEveryInstructionSet {};

TEST_F(OperatorTable, OfThisCpuIsTheReferenceInEveryDtype) {
  const c10::NoGradGuard no_grad;
  on_each([] {
    for (const auto& [name, run] : cases())
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
        SCOPED_TRACE(name + " " + toString(dtype));
        const Outputs got = run(cpu_operators(), dtype), want = run(reference_operators(), dtype);
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
          if (!got[i].defined()) continue;
          ASSERT_EQ(got[i].sizes(), want[i].sizes()) << i;
          ASSERT_EQ(got[i].scalar_type(), want[i].scalar_type()) << i;
          // Sums of 40 terms and more of which each is rounded; half a dozen roundings of what is stored.
          EXPECT_LE(relative_error(got[i], wide(want[i])),
                    40 * std::max(unit_roundoff(dtype), unit_roundoff(got[i].scalar_type())))
              << i;
        }
      }
  });
}

TEST_F(OperatorTable, HasACaseAboveForEveryOperator) {
  std::set<std::string> listed, tested;
  for (const OperatorInfo& info : operator_list()) listed.insert(info.name);
  for (const auto& [name, _] : cases()) tested.insert(name);
  EXPECT_EQ(listed, tested);
}

TEST_F(OperatorTable, IsTheReferencesWhereTheInstructionSetIs) {
  force_instruction_set("reference");
  EXPECT_EQ(&on(at::Device(at::kCPU)), &reference_operators());
  for (const OperatorInfo& info : operator_list())
    for (const auto& [dtype, own] : info.on_cpu) EXPECT_FALSE(own) << info.name;
}

TEST(GroupedBiasGradient, IsTheSumOverEachGroupsRows) {
  const std::vector<std::int64_t> offsets = {0, 0, 3, kS};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const bool weighted : {false, true}) {
      const at::Tensor dy = data({kS, kH}, type, 1), weights = weighted ? data({kS}, wide_type(type), 2) : at::Tensor();
      const std::vector<double> betas = {0, 1, 0};
      std::vector<at::Tensor> got, want;
      for (std::size_t g = 0; g < betas.size(); ++g) {
        got.push_back(data({kH}, wide_type(type), 3 + static_cast<int>(g)));
        want.push_back(betas[g] * wide(got.back()));
        for (std::int64_t row = offsets[g]; row < offsets[g + 1]; ++row)
          want.back() += (weighted ? weights[row].item<double>() : 1.0) * wide(dy[row]);
      }
      grouped_bias_gradient(got, offsets, dy, weights, betas);
      EXPECT_EQ(got[0].count_nonzero().item<std::int64_t>(), 0) << "of no rows";
      for (std::size_t g = 1; g < got.size(); ++g)
        EXPECT_LT(relative_error(got[g], want[g]), 1e-6) << toString(type) << " group " << g;
    }
}

at::Tensor answer(at::TensorList parts) { return parts.front(); }

TEST_F(OperatorTable, OfCudaIsThePluginsAndTheReferencesWhereThatIsNull) {
  const Operators plugin{.linear_weight_gradient = reference_operators().linear_weight_gradient, .max_abs = answer};
  EXPECT_THROW(set_cuda_operators(plugin, sizeof(Operators) - 8), ConfigError);
  set_cuda_operators(plugin, sizeof(Operators));
  const Operators& table = on(at::Device(at::kCUDA, 0));
  EXPECT_EQ(table.max_abs, answer);
  EXPECT_EQ(table.layer_norm, reference_operators().layer_norm);
  for (const OperatorInfo& info : operator_list()) {
    const std::string name = info.name;
    std::vector<at::ScalarType> dtypes;
    if (name == "max_abs") dtypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
    if (name == "linear_weight_gradient") dtypes = {at::kBFloat16, at::kHalf};
    EXPECT_EQ(info.on_cuda, dtypes) << name;
  }
  static const Operators none;
  set_cuda_operators(none, sizeof(Operators));
}

}  // namespace
}  // namespace megatron::kernels
