#include "megatron/kernels/optimizer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/runtime.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: the optimizers of the papers in scalar float64, and numbers of PyTorch.
namespace megatron::kernels {
namespace {

struct State {
  at::Tensor param, exp_avg, exp_avg_sq;
};

void scalar_adamw(State& s, const at::Tensor& grad, const Adam& adam, const Update& o) {
  for (std::int64_t i = 0; i < s.param.numel(); ++i) {
    const double g = grad[i].item<double>() * o.grad_scale, t = static_cast<double>(o.step);
    const double m = adam.beta1 * s.exp_avg[i].item<double>() + (1 - adam.beta1) * g;
    const double v = adam.beta2 * s.exp_avg_sq[i].item<double>() + (1 - adam.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(adam.beta1, t)), v_hat = v / (1 - std::pow(adam.beta2, t));
    const double p = s.param[i].item<double>();
    s.exp_avg[i] = m;
    s.exp_avg_sq[i] = v;
    s.param[i] = p - o.learning_rate * (m_hat / (std::sqrt(v_hat) + adam.eps) + o.weight_decay * p);
  }
}

void expect_matches_the_paper(at::ScalarType dtype, double tolerance) {
  for (const std::int64_t count : {1, 37}) {
    State truth{at::randn({count}, at::kDouble), at::zeros({count}, at::kDouble), at::zeros({count}, at::kDouble)};
    const State got{truth.param.to(dtype).clone(), truth.exp_avg.to(dtype).clone(), truth.exp_avg_sq.to(dtype).clone()};
    truth.param = wide(got.param).clone();
    const Adam adam{.beta2 = 0.95};
    Update options{.learning_rate = 0.01, .weight_decay = 0.1, .grad_scale = 0.3};
    for (options.step = 1; options.step <= 5; ++options.step) {
      const at::Tensor grad = at::randn({count}).to(dtype);
      adam_(got.param, {}, grad, got.exp_avg, got.exp_avg_sq, adam, options);
      scalar_adamw(truth, grad, adam, options);
    }
    EXPECT_LT(relative_error(got.param, truth.param), tolerance);
    EXPECT_LT(relative_error(got.exp_avg, truth.exp_avg), tolerance);
    EXPECT_LT(relative_error(got.exp_avg_sq, truth.exp_avg_sq), tolerance);
  }
}

using OptimizerTest = OnEveryInstructionSet;

TEST_F(OptimizerTest, AdamwIsThatOfThePaper) {
  on_each([] { expect_matches_the_paper(at::kFloat, 1e-6); });
}
TEST(OptimizerReference, AdamwKeepsFloat64) { expect_matches_the_paper(at::kDouble, 1e-14); }

// Four steps over seven elements of small fractions, by PyTorch 2.11 in float64 (torch.optim, lr 0.01, weight_decay
// 0.1, betas 0.9 and 0.95, momentum 0.9).
const std::vector<double> kTorchAdam = {-0.3159419353763619,  -0.19530562459254827, -0.10094586099754559,
                                        0.016178337941654124, 0.09106947961805967,  0.17642757468190048,
                                        0.3211159786045885};
const std::vector<double> kTorchAdamW = {-0.318382409977639,  -0.19659029883438855, -0.10204917638740585,
                                         0.01622776961355805, 0.10163592954516333,  0.17705196120630665,
                                         0.3225329328365062};
const std::vector<double> kTorchSgd = {-0.3048668862378, -0.20089002916270002, -0.09537995070385,  0.008596906371250001,
                                       0.0974907348301,  0.18807155453895,     0.30697767036405005};
const std::vector<double> kTorchPlainSgd = {-0.30375, -0.20125, -0.09875, 0.00375, 0.0975, 0.2, 0.3025};

at::Tensor torch_parameter() { return (at::arange(7, at::kDouble) - 3) * 0.1; }
at::Tensor torch_gradient(std::int64_t step) {
  return ((at::arange(7, at::kDouble) * 3 + 5 * step).remainder(7) - 3) / 8;
}

/// step(param, gradient, first moment, second moment, number) four times in `dtype`, against `truth`.
template <class Step>
void expect_torch(const std::vector<double>& truth, const Step& step) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor param = torch_parameter().to(dtype), m = at::zeros({7}, dtype), v = at::zeros({7}, dtype);
    for (std::int64_t t = 1; t <= 4; ++t) step(param, torch_gradient(t).to(dtype), m, v, t);
    EXPECT_LT(relative_error(param, at::tensor(truth, at::kDouble)), dtype == at::kDouble ? 1e-14 : 1e-6);
  }
}

TEST_F(OptimizerTest, GiveTheNumbersOfPytorch) {
  on_each_and_the_reference([] {
    Update update{.learning_rate = 0.01, .weight_decay = 0.1};
    const Adam adam{.beta2 = 0.95};
    for (const bool decoupled : {false, true}) {
      update.decoupled = decoupled;
      expect_torch(decoupled ? kTorchAdamW : kTorchAdam, [&](const at::Tensor& p, const at::Tensor& g,
                                                             const at::Tensor& m, const at::Tensor& v, std::int64_t t) {
        update.step = t;
        adam_(p, {}, g, m, v, adam, update);
      });
    }
    update.decoupled = false;
    expect_torch(kTorchSgd, [&](const at::Tensor& p, const at::Tensor& g, const at::Tensor& m, const at::Tensor&,
                                std::int64_t) { sgd_(p, {}, g, m, 0.9, update); });
    update.weight_decay = 0;
    update.grad_scale = 0.5;  // of twice the gradient
    expect_torch(kTorchPlainSgd, [&](const at::Tensor& p, const at::Tensor& g, const at::Tensor&, const at::Tensor&,
                                     std::int64_t) { sgd_(p, {}, g * 2, {}, 0, update); });
  });
}

TEST_F(OptimizerTest, LionIsThatOfThePaper) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const at::Tensor param = at::randn({37}).to(dtype), m = at::zeros({37}, dtype);
      at::Tensor p64 = wide(param).clone(), m64 = wide(m).clone();
      const Lion lion{.beta1 = 0.8, .beta2 = 0.95};
      const Update update{.learning_rate = 0.01, .weight_decay = 0.1, .grad_scale = 0.3};
      for (int step = 0; step < 5; ++step) {
        const at::Tensor grad = at::randn({37}).to(dtype);
        grad[5] = 0.0;  // its direction is 0 in the first step: no step at all
        lion_(param, {}, grad, m, lion, update);
        for (std::int64_t i = 0; i < 37; ++i) {
          const double g = grad[i].item<double>() * 0.3, old = m64[i].item<double>(), p = p64[i].item<double>();
          const double c = 0.8 * old + 0.2 * g;
          p64[i] = p - 0.01 * ((c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0) + 0.1 * p);
          m64[i] = 0.95 * old + 0.05 * g;
        }
      }
      EXPECT_LT(relative_error(param, p64), dtype == at::kDouble ? 1e-14 : 1e-6);
      EXPECT_LT(relative_error(m, m64), dtype == at::kDouble ? 1e-14 : 1e-6);
    }
  });
}

/// Adam of `count` elements with its tensors in the given precisions.
struct MixedState {
  at::Tensor param, model, exp_avg, exp_avg_sq;
  MixedState(std::int64_t count, at::ScalarType model_dtype, at::ScalarType moments)
      : param(at::randn({count})),
        model(at::zeros({count}, model_dtype)),
        exp_avg(at::zeros({count}, moments)),
        exp_avg_sq(at::zeros({count}, moments)) {}
};

TEST_F(OptimizerTest, WritesTheRoundedModelAndTakesGradientsOfEveryPrecision) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : kHalves) {
      for (const std::int64_t count : {1, 1000, 2500}) {
        MixedState mixed(count, dtype, at::kFloat);
        const at::Tensor plain = mixed.param.clone(), m = at::zeros({count}), v = at::zeros({count});
        Update update{.learning_rate = 0.01, .weight_decay = 0.1, .grad_scale = 0.3};
        for (update.step = 1; update.step <= 3; ++update.step) {
          const at::Tensor grad = at::randn({count}).to(dtype);
          adam_(mixed.param, mixed.model, grad, mixed.exp_avg, mixed.exp_avg_sq, {}, update);
          adam_(plain, {}, grad.to(at::kFloat), m, v, {}, update);
        }
        EXPECT_TRUE(mixed.param.equal(plain) && mixed.exp_avg.equal(m) && mixed.exp_avg_sq.equal(v));
        EXPECT_TRUE(mixed.model.equal(plain.to(dtype))) << dtype << ' ' << count;
      }
    }
  });
}

TEST_F(OptimizerTest, MomentsInBf16AreRoundedAfterTheUpdateHasUsedThem) {
  on_each_and_the_reference([] {
    MixedState mixed(1500, at::kBFloat16, at::kBFloat16);
    State truth{wide(mixed.param).clone(), wide(mixed.exp_avg), wide(mixed.exp_avg_sq)};
    const Adam adam{.beta2 = 0.95};
    Update update{.learning_rate = 0.01};
    for (update.step = 1; update.step <= 4; ++update.step) {
      const at::Tensor grad = at::randn({1500});
      adam_(mixed.param, {}, grad, mixed.exp_avg, mixed.exp_avg_sq, adam, update);
      scalar_adamw(truth, grad, adam, update);
      EXPECT_LT(error_beyond_rounding(mixed.exp_avg, truth.exp_avg), 1e-7);
      EXPECT_LT(error_beyond_rounding(mixed.exp_avg_sq, truth.exp_avg_sq), 1e-6);
      EXPECT_LT(relative_error(mixed.param, truth.param), 1e-6);
      truth.exp_avg = wide(mixed.exp_avg).clone();
      truth.exp_avg_sq = wide(mixed.exp_avg_sq).clone();
    }
  });
}

/// `x` stored in `dtype` by a step that moves nothing, rounded stochastically.
at::Tensor stored(const at::Tensor& x, at::ScalarType dtype, const ElementNumbers& numbers, std::int64_t step) {
  const at::Tensor model = at::zeros({x.numel()}, dtype);
  const Update update{.step = step, .stochastic_rounding = true, .numbers = numbers};
  sgd_(x.clone(), model, at::zeros_like(x), {}, 0, update);
  return model;
}

TEST_F(OptimizerTest, StochasticRoundingIsUnbiasedAndTakesANeighbour) {
  on_each_and_the_reference([] {
    constexpr std::int64_t kCount = 20'000;
    for (const at::ScalarType dtype : kHalves) {
      const double last_place = dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-10;  // from 1 to 2
      for (const double part : {0.0, 0.125, 0.5, 0.8125}) {
        for (const double sign : {1.0, -1.0}) {
          const at::Tensor x = at::full({kCount}, sign * (1.25 + part * last_place));
          const at::Tensor up = ((wide(stored(x, dtype, {.key = 5}, 3)) * sign - 1.25) / last_place);
          EXPECT_TRUE(up.eq(0).logical_or(up.eq(1)).all().item<bool>());
          EXPECT_NEAR(up.mean().item<double>(), part, 5 * std::sqrt(part * (1 - part) / kCount)) << dtype;
        }
      }
    }
  });
}

TEST_F(OptimizerTest, StochasticRoundingIsTheSameInEverySliceAndOnEveryInstructionSet) {
  const at::Tensor full = at::randn({60, 50}) * 3;
  full[0][0] = std::nan("");
  full[0][1] = std::numeric_limits<float>::infinity();
  full[0][2] = 1e-40f;  // denormal
  full[0][3] = std::numeric_limits<float>::max();
  force_instruction_set("reference");
  const auto rounded = [&](std::int64_t step) {
    return stored(full.flatten(), at::kBFloat16, {.key = 5}, step).view({60, 50});
  };
  const at::Tensor truth = rounded(3);
  EXPECT_TRUE(std::isnan(truth[0][0].item<double>()) && std::isinf(truth[0][1].item<double>()));
  const auto same = [&](const at::Tensor& got, const at::Tensor& want) {
    const at::Tensor a = got.contiguous(), b = want.contiguous();
    return a.isnan().equal(b.isnan()) && a.nan_to_num().view(at::kShort).equal(b.nan_to_num().view(at::kShort));
  };
  on_each_and_the_reference([&] {
    EXPECT_TRUE(same(rounded(3), truth));
    EXPECT_FALSE(same(rounded(4), truth));
    const at::Tensor rows = stored(full.narrow(0, 7, 20).flatten(), at::kBFloat16, {.key = 5, .first = 350}, 3);
    EXPECT_TRUE(same(rows.view({20, 50}), truth.narrow(0, 7, 20)));
    const at::Tensor columns = full.narrow(1, 11, 30).contiguous().flatten();
    const ElementNumbers numbers{.key = 5, .first = 11, .run = 30, .stride = 50};
    EXPECT_TRUE(same(stored(columns, at::kBFloat16, numbers, 3).view({60, 30}), truth.narrow(1, 11, 30)));
  });
}

TEST_F(OptimizerTest, RoundsAParameterAgainAsItsUpdateDid) {
  const at::Tensor x = at::randn({70'000}) * 3;
  const ElementNumbers numbers{.key = 5, .first = 11, .run = 7, .stride = 50};
  on_each_and_the_reference([&] {
    for (const at::ScalarType dtype : kHalves)
      for (const bool stochastic : {false, true}) {
        const Update update{.step = 3, .stochastic_rounding = stochastic, .numbers = numbers};
        const at::Tensor model = at::zeros({x.numel()}, dtype);
        round_(model, x, update);
        EXPECT_TRUE(model.equal(stochastic ? stored(x, dtype, numbers, 3) : x.to(dtype))) << dtype;
      }
  });
}

TEST_F(OptimizerTest, RoundsTiesToEvenAndKeepsNanAndInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();
  const std::vector<float> from = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -1 - 0x1p-8f, 1 + 0x1.8p-8f, kInf, -kInf, kMax, -0.0f},
                           to = {1, 1 + 0x1p-6f, -1, 1 + 0x1p-7f, kInf, -kInf, kInf, -0.0f};
  on_each_and_the_reference([&] {
    const at::Tensor model = at::zeros({8}, at::kBFloat16), broken = at::zeros({20}, at::kBFloat16);
    round_(model, at::tensor(from), {});
    EXPECT_TRUE(model.to(at::kFloat).equal(at::tensor(to))) << model;
    EXPECT_TRUE(model[7].signbit().item<bool>());
    round_(broken, at::full({20}, std::nan("")), {});
    EXPECT_TRUE(broken.isnan().all().item<bool>());
  });
}

TEST_F(OptimizerTest, KeepsSmallStepsOfBf16ParametersInTheMeanByStochasticRounding) {
  on_each_and_the_reference([] {
    const at::Tensor grad = at::ones({20'000});
    for (const bool stochastic : {false, true}) {
      const at::Tensor param = at::full({20'000}, 1.5, at::kBFloat16);
      Update update{.learning_rate = 0x1p-12, .stochastic_rounding = stochastic, .numbers = {.key = 9}};
      for (update.step = 1; update.step <= 64; ++update.step) sgd_(param, {}, grad, {}, 0, update);
      EXPECT_NEAR(wide(param).mean().item<double>(), stochastic ? 1.5 - 0x1p-6 : 1.5, stochastic ? 4e-4 : 0.0);
    }
  });
}

// One step of each rule as `update` says; what it wrote.
std::vector<at::Tensor> stepped(int rule, const at::Tensor& start, at::ScalarType stored, const Update& update) {
  const at::Tensor param = start.clone(), model = start.to(stored).clone(), grad = start.sin(), first = start.cos(),
                   second = start.square();
  if (rule == 0) adam_(param, model, grad, first, second, {}, update);
  if (rule == 1) sgd_(param, model, grad, first, 0.9, update);
  if (rule == 2) lion_(param, model, grad, first, {}, update);
  return {param, model, first, second};
}

TEST_F(OptimizerTest, AFactorInMemoryIsThatNumberAndNanLeavesEverythingAsItIs) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      for (const bool stochastic : {false, true})
        for (int rule = 0; rule < 3; ++rule) {
          const at::Tensor start = at::randn({1500}, dtype);
          const at::ScalarType stored = dtype == at::kFloat ? at::kBFloat16 : at::kDouble;
          Update update{.learning_rate = 0.1, .grad_scale = 0.3, .stochastic_rounding = stochastic};
          const auto want = stepped(rule, start, stored, update);
          update.grad_scale = 7;  // not read
          update.factor = at::scalar_tensor(0.3, at::kDouble);
          const auto got = stepped(rule, start, stored, update);
          for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << rule << ", " << i;
          EXPECT_FALSE(got[0].equal(start)) << rule;
          update.factor = at::scalar_tensor(std::nan(""), at::kDouble);
          const auto kept = stepped(rule, start, stored, update);
          EXPECT_TRUE(kept[0].equal(start) && kept[1].equal(start.to(stored))) << rule;
          EXPECT_TRUE(kept[2].equal(start.cos()) && kept[3].equal(start.square())) << rule;
        }
  });
}

TEST_F(OptimizerTest, SumsSquaresInFloat64OnAnyNumberOfThreads) {
  on_each([] {
    for (const std::int64_t count : {0, 1, 31, 200'001}) {
      const at::Tensor x = at::randn({count}) * 1e-3;
      const double truth = wide(x).square().sum().item<double>();
      configure_thread(1);
      const double one = sum_of_squares(x).item<double>();
      configure_thread(2);
      EXPECT_NEAR(one, truth, 1e-13 * truth);
      EXPECT_EQ(one, sum_of_squares(x).item<double>());
      EXPECT_NEAR(sum_of_squares(wide(x)).item<double>(), truth, 1e-13 * truth);
      EXPECT_EQ(sum_of_squares({x, x}).item<double>(), 2 * one);
      for (const at::ScalarType dtype : kHalves) {
        const at::Tensor rounded = x.to(dtype);
        EXPECT_NEAR(sum_of_squares(rounded).item<double>(), wide(rounded).square().sum().item<double>(), 1e-13 * truth);
        EXPECT_EQ(max_abs(rounded).item<double>(), count > 0 ? wide(rounded).abs().max().item<double>() : 0.0);
      }
    }
  });
}

TEST_F(OptimizerTest, NormsSeeNanAndInfinityWhereverTheyAre) {
  on_each([] {
    for (const std::int64_t at : {0, 17, 100'000, 140'000}) {
      at::Tensor x = at::randn({140'001});
      EXPECT_EQ(max_abs(x).item<double>(), x.abs().max().item<double>());
      x[at] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(max_abs({at::ones({3}), x}).item<double>(), std::numeric_limits<double>::infinity());
      EXPECT_EQ(sum_of_squares({at::ones({3}), x}).item<double>(), std::numeric_limits<double>::infinity());
      x[at] = std::nan("");
      EXPECT_TRUE(std::isnan(max_abs({x, at::ones({3})}).item<double>())) << at;
      EXPECT_TRUE(std::isnan(sum_of_squares({x, at::ones({3})}).item<double>())) << at;
    }
    EXPECT_EQ(max_abs(at::zeros({0})).item<double>(), 0.0);
  });
}

}  // namespace
}  // namespace megatron::kernels
