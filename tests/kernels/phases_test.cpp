#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/kernels/emulated/driver.h"
#include "megatron/kernels/emulated/operators.h"
#include "megatron/kernels/phases/operators/copy.h"
#include "megatron/kernels/reference.h"
#include "megatron/kernels/runtime.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/phases_check.h"
#include "tests/testing/cuda.h"

// The kernels of CUDA against the reference: every dtype, odd shapes, every form. On the host (EmulatedKernels),
// whatever order blocks and threads take; on a GPU (CudaKernels) also against the bits of the host driver.
namespace megatron::kernels {
namespace {

Dropout dropout_of(std::int64_t batch, std::int64_t features = 0) {
  return {.p = 0.3,
          .key = 77,
          .sample_ids = at::arange(batch, at::kLong) * 5 + 2,
          .position_offset = 3,
          .features = features,
          .feature_offset = features > 0 ? 5 : 0};
}

struct Shape {
  std::int64_t s, b, h;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 2, 7}, {5, 3, 40}, {2, 1, 1033}, {130, 2, 24}, {1, 2, 4113}};

void norms_and_the_sums_before_them(const Check& check) {
  for (const auto& [s, b, h] : kShapes) {
    SCOPED_TRACE(h);
    const at::Tensor x = check.normal({s, b, h}), residual = check.normal({s, b, h}), bias = check.normal({h}),
                     weight = check.normal({h}), norm_bias = check.normal({h});
    for (const Dropout& dropout : {Dropout{}, dropout_of(b, h + 9)})
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const AddNormOutput layer = o.bias_dropout_add_norm(to(x), to(bias), to(residual), dropout, to(weight),
                                                                to(norm_bias), 1e-5),
                                rms = o.bias_dropout_add_rms_norm(to(x), {}, to(residual), dropout, to(weight), 1e-5);
            return Outputs{layer.sum,
                           layer.y,
                           layer.mean,
                           layer.rstd,
                           rms.sum,
                           rms.y,
                           rms.rstd,
                           o.bias_dropout_add(to(x), to(bias), to(residual), dropout),
                           o.dropout_backward(to(x), dropout)};
          },
          Bits::Same, 32);
    check.expect_reference(
        [&](const Operators& o, const Move& to) {
          const NormOutput layer = o.layer_norm(to(x), to(weight), to(norm_bias), 1e-5),
                           rms = o.rms_norm(to(x), to(weight), 1e-5);
          return Outputs{layer.y, layer.mean, layer.rstd, rms.y, rms.rstd};
        },
        Bits::Same, 32);  // means of a thousand numbers about zero
  }
}

void gradients_of_norms(const Check& check) {
  for (const auto& [s, b, h] : kShapes) {
    SCOPED_TRACE(h);
    const at::Tensor x = check.normal({s, b, h}), dy = check.normal({s, b, h}), past = check.normal({s, b, h}),
                     weight = check.normal({h});
    const NormOutput layer = reference::layer_norm(x, weight, check.normal({h}), 1e-1);
    const NormOutput rms = reference::rms_norm(x, weight, 1e-1);
    for (const at::ScalarType of_gradients : {wide_type(check.dtype()), check.dtype()})
      for (const double beta : {0.0, 1.0}) {
        const at::Tensor start = check.normal_wide({h}).to(of_gradients);
        check.expect_reference(
            [&](const Operators& o, const Move& to) {
              Outputs out;
              for (int i = 0; i < 4; ++i) out.push_back(to(start));
              out.push_back(o.layer_norm_backward(to(dy), to(x), to(layer.mean), to(layer.rstd), to(weight), out[0],
                                                  out[1], beta, to(past)));
              out.push_back(o.rms_norm_backward(to(dy), to(x), to(rms.rstd), to(weight), out[2], beta, {}));
              o.accumulate_bias_gradient(out[3], to(dy), beta);
              return out;
            },
            Bits::Same, 32);
        for (const Dropout& dropout : {Dropout{}, dropout_of(b, h + 9)})
          check.expect_reference(
              [&](const Operators& o, const Move& to) {
                const AddNormGradients biased{to(start), to(start), to(start), beta, 1 - beta},
                    plain{to(start), {}, {}, beta, 0};
                const auto with_bias = o.bias_dropout_add_norm_backward(to(dy), to(x), to(layer.mean), to(layer.rstd),
                                                                        to(weight), to(past), dropout, biased),
                           without = o.bias_dropout_add_norm_backward(to(dy), to(x), {}, to(rms.rstd), to(weight), {},
                                                                      dropout, plain);
                return Outputs{with_bias.residual, with_bias.x, biased.weight, biased.norm_bias,
                               biased.bias,        without.x,   plain.weight};
              },
              Bits::Same, 32);
      }
  }
}

void masks(const Check& check) {
  for (const std::int64_t batch : {2, 70}) {  // more than a launch carries
    const Dropout dropout = dropout_of(batch);
    const auto run = [&](const Operators& o, const Move& to) {
      const at::Device device = to(at::zeros({1})).device();
      return Outputs{o.dropout_mask(dropout, 3, batch, 33, check.dtype(), device),
                     o.attention_dropout_mask(dropout, batch, 3, 2, 4, 9, check.dtype(), device)};
    };
    Check::expect_equal(check.kernels(run), Check::reference(run), "who draws them");
  }
}

void activations(const Check& check) {
  for (const auto& [s, b, h] : kShapes)
    for (const Activation form : kForms) {
      SCOPED_TRACE(static_cast<int>(form.kind));
      const at::Tensor u = check.normal({s, b, h}), dy = check.normal({s, b, h}), bias = check.normal({h});
      const at::Tensor both = check.normal({s, b, 2 * h}), bias_of_both = check.normal({2 * h});
      const bool exact = form == Activation::Relu || form == Activation::SquaredRelu;
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const at::Tensor x = to(u), pair = to(both);
            const at::Tensor y = o.bias_activation(x, to(bias), form),
                             gated = o.bias_gated_activation(pair, to(bias_of_both), form);
            return Outputs{y,
                           x,
                           gated,
                           pair,
                           o.activation(to(u), form),
                           o.gated_activation(to(both), form),
                           o.activation_backward(to(dy), to(u), form),
                           o.gated_activation_backward(to(dy), to(both), form)};
          },
          exact ? Bits::Same : Bits::OfTheLibrary, 16);
    }
}

/// Of numbers whose squares or multiples float32 does not hold.
void extreme_slopes(const Check& check) {
  const double most = check.dtype() == at::kHalf ? 6e4 : 3e38;
  const at::Tensor u =
      at::tensor({-3e38, -1e20, -1e4, 1e4, 1e20, 3e38}, at::kDouble).clamp(-most, most).to(check.dtype());
  for (const Activation form : kForms) {
    if (form == Activation::SquaredRelu) continue;  // whose slope itself is infinite
    check.expect_reference(
        [&](const Operators& o, const Move& to) {
          return Outputs{o.activation_backward(to(at::ones_like(u)), to(u), form)};
        },
        Bits::OfTheLibrary, 16);
  }
}

/// The gradient of u beside y again, in one pass. The product before it is of ones, which every device adds up exactly.
void activations_again(const Check& check) {
  const at::Tensor dz = at::ones({3, 2, 1}, check.normal({1}).options());
  for (const Activation form : {Activation(Activation::GeluTanh), Activation(Activation::Silu)})
    for (const bool gated : {false, true}) {
      const at::Tensor u = check.normal({3, 2, gated ? 42 : 21}), w = check.normal({1, 21});
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const ActivatedOutput both =
                o.linear_activation_gradient(to(dz), to(w), to(u), form, gated, /*again=*/true, nullptr);
            return Outputs{both.u, both.y};
          },
          Bits::OfTheLibrary, 16);
    }
}

/// A product with its activation, and the way back through one; of sizes that 8 divides a library may do both at once.
void activated_products(const Check& check) {
  for (const std::int64_t f : {24, 21})
    for (const Activation form : {Activation(Activation::GeluTanh), Activation(Activation::GeluErf)}) {
      const at::Tensor x = check.normal({5, 3, 16}), w = check.normal({f, 16}), bias = check.normal({f});
      const at::Tensor dz = check.normal({5, 3, 32}), w2 = check.normal({32, f}), u = check.normal({5, 3, f});
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const ActivatedOutput biased = o.linear_activation(to(x), to(w), to(bias), form, false, nullptr),
                                  plain = o.linear_activation(to(x), to(w), {}, form, false, nullptr),
                                  back =
                                      o.linear_activation_gradient(to(dz), to(w2), to(u), form, false, true, nullptr),
                                  once =
                                      o.linear_activation_gradient(to(dz), to(w2), to(u), form, false, false, nullptr);
            return Outputs{biased.u, biased.y, plain.u, plain.y, back.u, back.y, once.u};
          },
          Bits::OfTheLibrary, 16);
    }
}

/// What is between the products of experts; of rows that no expert took, with weights and without.
void experts(const Check& check) {
  for (const std::int64_t f : {1, 7, 40, 1033})
    for (Activation form : kForms) {
      const at::Tensor dy = check.normal({5, f}), u = check.normal({5, f}), both = check.normal({5, 2 * f}),
                       weights = check.normal_wide({5});
      for (const double clamp : {0.0, 0.7}) {
        form.clamp = clamp;
        form.offset = clamp;
        check.expect_reference(
            [&](const Operators& o, const Move& to) {
              const WeightedGradient plain = o.weighted_activation_backward(to(dy), to(u), to(weights), form, false),
                                     gated = o.weighted_activation_backward(to(dy), to(both), to(weights), form, true),
                                     one = o.weighted_activation_backward(to(dy), to(both), {}, form, true);
              return Outputs{plain.du, plain.y, plain.weights, gated.du, gated.y, gated.weights, one.du, one.y};
            },
            Bits::OfTheLibrary, 32);
      }
    }
  for (const std::int64_t h : {1, 8, 77, 1100}) {
    const at::Tensor rows = check.normal({6, h}), weights = check.normal_wide({9, 3}),
                     index = at::randint(-1, 6, {9, 3}, at::kLong);
    check.expect_reference(
        [&](const Operators& o, const Move& to) {
          return Outputs{o.combined_rows(to(rows), to(index), to(weights)), o.combined_rows(to(rows), to(index), {})};
        },
        Bits::Same);
  }
}

/// The gradients of a weight and of its bias; of sizes that 8 divides a library may compute both at once.
void gradients_of_layers(const Check& check) {
  for (const std::int64_t n : {24, 21})
    for (const double beta : {0.0, 1.0}) {
      const at::Tensor dy = check.normal({67, 3, n}), x = check.normal({67, 3, 16}),
                       weight = check.normal_wide({n, 16}), bias = check.normal_wide({n});
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            Outputs out{to(weight), to(bias)};
            o.linear_gradients(out[0], to(dy), to(x), beta, out[1], 1 - beta);
            return out;
          },
          Bits::OfTheLibrary, 32);
    }
}

void rotations(const Check& check) {
  for (const std::int64_t d : {8, 40})
    for (const bool interleaved : {false, true})
      for (const bool inverse : {false, true}) {
        const RopeTable table =
            rope_table({.rotary_dim = d == 8 ? 6 : 32, .interleaved = interleaved}, 20, check.dtype(), at::kCPU);
        const at::Tensor fused = check.normal({5, 2, 3, 4, d});
        const at::Tensor ids = at::randint(20, {2, 5}, at::kLong), same = at::randint(20, {1, 5}, at::kLong);
        check.expect_reference(
            [&](const Operators& o, const Move& to) {
              const RopeTable there{to(table.cos), to(table.sin), interleaved};
              const at::Tensor x = to(fused), y = to(fused), z = to(fused);
              o.rotate_(x.narrow(3, 0, 2), there, {}, 11, inverse);
              o.rotate_(y.select(3, 2), there, to(ids), 0, inverse);
              o.rotate_(z.select(3, 1), there, same, 0, inverse);
              return Outputs{x, y, z};
            },
            Bits::Same);
      }
}

void embeddings(const Check& check) {
  const at::Tensor tokens = at::randint(15, {9, 4}, at::kLong);  // rows 3 to 12 are here, most of them several times
  for (const std::int64_t h : {1, 8, 77, 1100}) {
    const at::Tensor weight = check.normal({10, h}), dy = check.normal({9, 4, h});
    for (const at::ScalarType of_gradients : {wide_type(check.dtype()), check.dtype()})
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const at::Tensor grad = to(weight.to(of_gradients));
            o.embedding_backward(grad, to(tokens), to(dy), 3);
            return Outputs{o.embedding(to(tokens), to(weight), 3), grad};
          },
          Bits::Same);
  }
}

void cross_entropy(const Check& check) {
  for (const std::int64_t v : {1, 12, 300, 1025}) {
    const at::Tensor logits = check.normal({7, v}) * 3, labels = at::randint(v + 20, {7}, at::kLong),
                     scale = check.normal_wide({7}), logsumexp = check.normal_wide({7}) + 8;
    for (const std::int64_t padding : {std::int64_t{0}, std::int64_t{1}, v}) {
      const VocabRange range{.begin = 10, .end = 10 + v - padding, .vocab = 20 + v};
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const SoftmaxPieces pieces = o.softmax_pieces(to(logits), to(labels), range, true);
            const at::Tensor gradient = to(logits);
            o.cross_entropy_gradient_(gradient, to(labels), range, to(logsumexp), to(scale), 0.1);
            const at::Tensor max = pieces.max.clamp_min(-1e4);  // of no column minus infinity
            return Outputs{max, pieces.sum_exp, pieces.target, pieces.sum, gradient};
          },
          Bits::OfTheLibrary, 16);
    }
    if (v <= 8) continue;
    at::Tensor overflowed = logits.clone();
    overflowed.slice(1, 0, 8).fill_(-std::numeric_limits<double>::infinity());
    check.expect_reference(
        [&](const Operators& o, const Move& to) {
          const VocabRange range{.begin = 0, .end = v, .vocab = v};
          const SoftmaxPieces pieces =
              o.softmax_pieces(to(overflowed), to(at::full({7}, v - 1, at::kLong)), range, false);
          return Outputs{pieces.max, pieces.sum_exp, pieces.target};
        },
        Bits::OfTheLibrary, 16);
  }
}

void updates(const Check& check) {
  const std::int64_t n = 1030;
  const at::ScalarType stored = check.dtype() == at::kHalf ? at::kHalf : at::kBFloat16;
  const at::Tensor param = check.normal_wide({n}), model = param.to(stored), grad = check.normal({n}),
                   first = check.normal_wide({n}), second = check.normal_wide({n}).abs();
  for (const bool stochastic : {false, true})
    for (const bool decoupled : {false, true})
      for (int rule = 0; rule < 5; ++rule) {
        SCOPED_TRACE(rule);
        const Update update{.learning_rate = 0.01,
                            .weight_decay = 0.1,
                            .grad_scale = 0.5,
                            .step = 3,
                            .decoupled = decoupled,
                            .stochastic_rounding = stochastic,
                            .numbers = {.key = 9, .first = 100, .run = 7, .stride = 20}};
        check.expect_reference(
            [&](const Operators& o, const Move& to) {
              const Outputs t{to(param), to(model), to(first), to(second)};
              if (rule == 0) o.adam_(t[0], t[1], to(grad), t[2], t[3], {}, update);
              if (rule == 1) o.sgd_(t[0], t[1], to(grad), t[2], 0.9, update);
              if (rule == 2) o.sgd_(t[0], {}, to(grad), {}, 0, update);
              if (rule == 3) o.lion_(t[0], t[1], to(grad), t[2], {}, update);
              if (rule == 4) o.round_(t[1], t[0], update);
              return t;
            },
            Bits::Same, 4);
      }
  for (const double factor : {0.3, std::numeric_limits<double>::quiet_NaN()})  // which the host does not know
    for (int rule = 0; rule < 3; ++rule) {
      SCOPED_TRACE(rule);
      check.expect_reference(
          [&](const Operators& o, const Move& to) {
            const Update update{.learning_rate = 0.01, .factor = to(at::scalar_tensor(factor, at::kDouble)), .step = 2};
            const Outputs t{to(param), to(model), to(first), to(second)};
            if (rule == 0) o.adam_(t[0], t[1], to(grad), t[2], t[3], {}, update);
            if (rule == 1) o.sgd_(t[0], t[1], to(grad), t[2], 0.9, update);
            if (rule == 2) o.lion_(t[0], t[1], to(grad), t[2], {}, update);
            return t;
          },
          Bits::Same, 4);
    }
  const at::Tensor low = param.to(stored), moments = first.to(stored), squares = second.to(stored);
  check.expect_reference(
      [&](const Operators& o, const Move& to) {
        const at::Tensor p = to(low), m = to(moments), v = to(squares);
        o.adam_(p, {}, to(grad), m, v, {}, {.learning_rate = 0.01, .step = 2});
        return Outputs{p};
      },
      Bits::Same);
}

void stochastic_rounding(const Check& check) {
  // Powers of two down to what 16 bits hold as denormal numbers, zero, what overflows, infinity.
  const at::Tensor x =
      at::cat({at::pow(2.0, at::arange(-30, 18, at::kDouble)) * 1.3, check.normal({50}).to(at::kDouble) * 1e-5,
               at::tensor({0.0, 70000.0, std::numeric_limits<double>::infinity()}, at::kDouble)})
          .to(wide_type(check.dtype()));
  for (const at::ScalarType stored : {at::kBFloat16, at::kHalf})
    for (std::int64_t step = 1; step < 5; ++step) {
      const auto run = [&](const Operators& o, const Move& to) {
        const at::Tensor model = to(at::zeros({x.numel()}, stored));
        o.round_(model, to(x), {.step = step, .stochastic_rounding = true, .numbers = {.key = 5}});
        return Outputs{model};
      };
      Check::expect_equal(check.kernels(run), Check::reference(run), "who rounds");
    }
}

void reductions(const Check& check) {
  const auto both = [&](const at::Tensor& x) {
    const Outputs out = check.kernels([&](const Operators& o, const Move& to) {
      const at::Tensor there = to(x);
      return Outputs{at::stack({o.sum_of_squares(there), o.max_abs(there)})};
    });
    return std::pair{out[0][0].item<double>(), out[0][1].item<double>()};
  };
  for (const std::int64_t n : {1, 7, 16384, 40001}) {
    const at::Tensor x = check.normal({n});
    const double truth = wide(x).square().sum().item<double>();
    EXPECT_NEAR(both(x).first, truth, 1e-12 * truth) << n;
    EXPECT_EQ(both(x).second, wide(x).abs().max().item<double>()) << n;
    for (const double odd : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      const at::Tensor broken = x.clone();
      broken[n / 2] = odd;
      EXPECT_FALSE(std::isfinite(both(broken).first)) << n;
      EXPECT_FALSE(std::isfinite(both(broken).second)) << n;
    }
  }
}

struct AttentionCase {
  std::int64_t queries, keys, batch, groups, ratio, d;
};
enum class AttentionKind { Causal, Dropped, Packed, Biased, Sinks, Ahead };

AttentionOptions options_of(const Check& check, AttentionKind kind, const AttentionCase& c) {
  AttentionOptions options;
  if (kind == AttentionKind::Dropped) {
    options.dropout = dropout_of(c.batch, c.keys + 9);  // of a longer sequence
    options.dropout.positions = c.queries + 7;
    options.head_offset = 1;
  } else if (kind == AttentionKind::Packed && c.queries == c.keys) {
    options.first_key = at::zeros({c.batch, c.queries}, at::kInt);
    options.first_key.slice(1, c.queries / 2).fill_(c.queries / 2);
  } else if (kind == AttentionKind::Ahead) {
    options.ahead = 3;
    if (c.queries == c.keys)
      options.first_key = (at::arange(c.queries, at::kInt) - 3).clamp_min(0).expand({c.batch, c.queries}).contiguous();
  } else if (kind == AttentionKind::Sinks) {
    options.sinks = check.normal_wide({c.groups * c.ratio});
  } else if (kind == AttentionKind::Biased) {
    options.causal = false;
    options.scale = 1;
    options.bias = check.normal_wide({c.groups * c.ratio, c.queries + c.keys - 1});
    options.key_lengths = at::full({c.batch}, std::max<std::int64_t>(c.keys - 2, 1), at::kInt);
  }
  return options;
}

void expect_attention(const Check& check, AttentionKind kind, const AttentionCase& c) {
  const at::Tensor fused = check.normal({c.queries, c.batch, c.groups, c.ratio + 2, c.d}),
                   k = check.normal({c.keys, c.batch, c.groups, c.d}),
                   v = check.normal({c.keys, c.batch, c.groups, c.d}),
                   dout = check.normal({c.queries, c.batch, c.groups * c.ratio, c.d});
  const AttentionOptions options = options_of(check, kind, c);
  const AttentionOutput truth = reference::attention(fused.narrow(3, 0, c.ratio), k, v, options);
  check.expect_reference(
      [&](const Operators& o, const Move& to) {
        AttentionOptions there = options;
        there.first_key = to(options.first_key);
        there.key_lengths = to(options.key_lengths);
        there.bias = to(options.bias);
        there.sinks = to(options.sinks);
        const at::Tensor q = to(fused).narrow(3, 0, c.ratio), key = to(k), value = to(v);
        const AttentionOutput out = o.attention(q, key, value, there);
        const at::Tensor gradients = to(at::zeros_like(fused)), dk = at::empty_like(key), dv = at::empty_like(value),
                         dbias = options.bias.defined() ? at::empty_like(there.bias) : at::Tensor();
        o.attention_backward(to(dout), q, key, value, {to(truth.out), to(truth.logsumexp)}, there,
                             gradients.narrow(3, 0, c.ratio), dk, dv, dbias);
        Outputs all{out.out, out.logsumexp, gradients, dk, dv};
        if (dbias.defined()) all.push_back(dbias);
        return all;
      },
      Bits::OfTheLibrary, 64);
}

void attention(const Check& check) {
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 1, 1, 1, 1}, {37, 37, 2, 2, 2, 8}, {5, 70, 1, 1, 3, 40}, {33, 33, 1, 2, 1, 72}})
    for (const AttentionKind kind : {AttentionKind::Causal, AttentionKind::Dropped, AttentionKind::Packed,
                                     AttentionKind::Biased, AttentionKind::Sinks, AttentionKind::Ahead}) {
      SCOPED_TRACE(testing::Message() << c.queries << " x " << c.keys << ", kind " << static_cast<int>(kind));
      expect_attention(check, kind, c);
    }
}

struct Tested {
  const char* name;
  void (*run)(const Check&);
  friend void PrintTo(const Tested& tested, std::ostream* out) { *out << tested.name; }
};
constexpr Tested kTested[] = {{"Norms", norms_and_the_sums_before_them},
                              {"NormGradients", gradients_of_norms},
                              {"Masks", masks},
                              {"Activations", activations},
                              {"Experts", experts},
                              {"GradientsOfLayers", gradients_of_layers},
                              {"ActivationsAgain", activations_again},
                              {"ExtremeSlopes", extreme_slopes},
                              {"ActivatedProducts", activated_products},
                              {"Rotations", rotations},
                              {"Embeddings", embeddings},
                              {"CrossEntropy", cross_entropy},
                              {"Updates", updates},
                              {"StochasticRounding", stochastic_rounding},
                              {"Reductions", reductions},
                              {"Attention", attention}};

using Parameter = std::tuple<Tested, at::ScalarType>;
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + c10::toString(std::get<1>(info.param));
}

class EmulatedKernels : public testing::TestWithParam<Parameter> {};
TEST_P(EmulatedKernels, AreTheReferenceInAnyOrderOfThreads) {
  const auto& [tested, dtype] = GetParam();
  tested.run(Check(dtype, at::kCPU));
}

class CudaKernels : public testing::TestWithParam<Parameter> {};
TEST_P(CudaKernels, AreTheReferenceAndTheHostDriversBits) {
  NEEDS_A_GPU();
  const auto& [tested, dtype] = GetParam();
  tested.run(Check(dtype, at::kCUDA));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EmulatedKernels,
                         testing::Combine(testing::ValuesIn(kTested), testing::ValuesIn(kDtypes)), name_of);
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaKernels, testing::Combine(testing::ValuesIn(kTested), testing::ValuesIn(kDtypes)),
                         name_of);

TEST(EmulatedCopy, IsACopyWhateverTheStrides) {
  for (const at::ScalarType dtype : kDtypes)
    for (const std::int64_t d : {1, 8, 20}) {
      const at::Tensor from = at::randn({2, 5, 6, d}).to(dtype), fused = at::zeros({5, 2, 3, 4, d}, from.options());
      const at::Tensor to = fused.narrow(3, 1, 2), x = from.transpose(0, 1).unflatten(2, {3, 2});
      phases::copy_heads<emulated::HostDriver>(to, x);
      EXPECT_TRUE(at::equal(to, x));
      EXPECT_EQ(fused.narrow(3, 0, 1).abs().sum().item<double>() + fused.narrow(3, 3, 1).abs().sum().item<double>(), 0);
      const at::Tensor whole = at::empty({5, 2, 6, d}, from.options());
      phases::copy_heads<emulated::HostDriver>(whole, from.transpose(0, 1));
      EXPECT_TRUE(at::equal(whole, from.transpose(0, 1)));
    }
}

TEST(Divisor, DividesAsTheLanguageDoes) {
  constexpr std::int64_t kLargest = (std::int64_t{1} << 31) - 1;
  for (const std::int64_t by :
       {1L, 2L, 3L, 5L, 7L, 96L, 641L, 6288L, 65535L, 65536L, 1234567891L, kLargest, kLargest + 9})
    for (const std::int64_t n : {0L, 1L, by - 1, by, by + 1, 3 * by - 1, 3 * by, 1999999999L, kLargest - 1, kLargest,
                                 kLargest + 1, kLargest * 1000})
      EXPECT_EQ(phases::Divisor(by).of(n), n / by) << n << " / " << by;
}

TEST(EmulatedAttention, AQueryThatSeesNoKeyGivesZeros) {
  const at::Tensor q = at::randn({3, 1, 1, 4}), k = at::randn({3, 1, 1, 4});
  AttentionOptions options;
  options.key_lengths = at::zeros({1}, at::kInt);
  const AttentionOutput out = emulated_operators().attention(q, k, k, options);
  EXPECT_EQ(out.out.abs().max().item<float>(), 0);
  EXPECT_EQ(out.logsumexp.max().item<float>(), -std::numeric_limits<float>::infinity());
}

TEST(EmulatedRotation, APositionThatTheTableLacksThrowsOnTheHost) {
  const RopeTable table = rope_table({.rotary_dim = 4}, 3, at::kFloat, at::kCPU);
  EXPECT_THROW(emulated_operators().rotate_(at::randn({4, 1, 1, 4}), table, {}, 0, false), std::logic_error);
}

TEST(EmulatedTable, IsTakenWhereItsKernelsAreNamed) {
  force_instruction_set(kCudaEmulated);
  EXPECT_EQ(&on(at::Device(at::kCPU)), &emulated_operators());
  EXPECT_EQ(instruction_set(), kCudaEmulated);
  force_instruction_set("auto");
  EXPECT_NE(&on(at::Device(at::kCPU)), &emulated_operators());
}

TEST(EmulatedTable, HasEveryOperator) {
  const Operators& all = emulated_operators();
#define OPERATOR(result, name, ...) EXPECT_NE(all.name, nullptr) << #name;
#include "megatron/kernels/operators.def"
}

}  // namespace
}  // namespace megatron::kernels
