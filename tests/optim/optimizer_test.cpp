#include "megatron/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/optim/hand_made_store.h"
#include "tests/testing/tensors.h"

namespace megatron::optim {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1, kMomentum = 0.8;

/// One parameter's values and what an algorithm keeps of it, in float64.
struct Plain {
  at::Tensor w, a, b;
};
/// The published algorithms as their papers write them. g: the gradient; decoupled decay is not in it.
using PlainStep = void (*)(Plain&, const at::Tensor& g, double lr, int step);

void plain_adam(Plain& p, const at::Tensor& g, double lr, int step) {
  p.a = p.a * kBeta1 + g * (1 - kBeta1);
  p.b = p.b * kBeta2 + g * g * (1 - kBeta2);
  const auto root = (p.b / (1 - std::pow(kBeta2, step))).sqrt() + kEps;
  p.w = p.w - lr / (1 - std::pow(kBeta1, step)) * p.a / root;
}
void plain_sgd(Plain& p, const at::Tensor& g, double lr, int) {
  p.a = p.a * kMomentum + g;
  p.w = p.w - lr * p.a;
}
void plain_lion(Plain& p, const at::Tensor& g, double lr, int) {
  p.w = p.w - lr * (p.a * kBeta1 + g * (1 - kBeta1)).sign();
  p.a = p.a * kBeta2 + g * (1 - kBeta2);
}

struct Algorithm {
  const char* name;
  config::OptimizerConfig optimizer;
  PlainStep step;
  bool decoupled;
};
const Algorithm kAlgorithms[] = {
    {"AdamW", {.adam_beta1 = kBeta1, .adam_beta2 = kBeta2, .adam_eps = kEps}, plain_adam, true},
    {"AdamL2", {.adam_beta1 = kBeta1, .adam_beta2 = kBeta2, .adam_eps = kEps}, plain_adam, false},
    {"Sgd", {.name = "sgd", .sgd_momentum = kMomentum}, plain_sgd, false},
    {"SgdDecoupled", {.name = "sgd", .sgd_momentum = kMomentum}, plain_sgd, true},
    {"Lion", {.name = "lion", .lion_beta1 = kBeta1, .lion_beta2 = kBeta2}, plain_lion, true},
};

/// A gradient of the full parameter that differs from step to step, cut to the slice that `spec` describes.
void set_gradients(const parallel::ParameterStore& store, int step) {
  for (const auto& parameter : store.all()) {
    const auto& spec = parameter->spec;
    const auto full = (at::arange(spec.size(), at::kDouble) + 0.3 * step).cos().view(spec.shape);
    parameter->grad.copy_(megatron::testing::slice_of(full, spec));
  }
}

std::vector<plan::Shard> all_of(const parallel::ParameterStore& store) { return plan::shards(store.layout(), 1, 0); }

class OptimizerRules : public ::testing::TestWithParam<std::tuple<Algorithm, at::ScalarType>> {};

TEST_P(OptimizerRules, FollowThePublishedAlgorithmOverTheFlatBuffers) {
  const auto& [algorithm, dtype] = GetParam();
  const auto store = testing::store(12, dtype);
  Optimizer optimizer(store, all_of(store), algorithm.optimizer,
                      {.weight_decay = kDecay, .decoupled = algorithm.decoupled});
  std::map<std::string, Plain> truth;
  for (const auto& parameter : store.all()) {
    const auto w = parameter->value.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    truth[parameter->spec.name] = {w, at::zeros_like(w), at::zeros_like(w)};
  }
  for (int step = 1; step <= 6; ++step) {
    set_gradients(store, step);
    const double lr = 0.01 * step;
    plan::LearningRates rates(lr);
    if (step % 2 == 0) rates.weight_decay = kDecay * step;  // a step's own
    optimizer.step(rates, 0.25);
    for (const auto& parameter : store.all()) {
      Plain& plain = truth.at(parameter->spec.name);
      const double decay = parameter->spec.weight_decay ? rates.weight_decay.value_or(kDecay) : 0;
      auto g = parameter->grad.to(at::kDouble) * 0.25;
      if (algorithm.decoupled)
        plain.w = plain.w * (1 - lr * decay);
      else
        g = g + plain.w * decay;
      algorithm.step(plain, g, lr, step);
    }
  }
  EXPECT_EQ(optimizer.steps(), 6);
  for (const auto& parameter : store.all()) {
    const auto& want = truth.at(parameter->spec.name).w;
    const double error = (parameter->value.detach().to(at::kDouble) - want).abs().max().item<double>();
    EXPECT_LE(error, dtype == at::kDouble ? 1e-13 : 4e-6) << parameter->spec.name;
  }
}
INSTANTIATE_TEST_SUITE_P(All, OptimizerRules,
                         ::testing::Combine(::testing::ValuesIn(kAlgorithms),
                                            ::testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) +
                                  (std::get<1>(test.param) == at::kFloat ? "_fp32" : "_fp64");
                         });

class HalfPrecision : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(HalfPrecision, MastersAreTrainedAsFloat32ParametersAreAndTheParametersAreTheirRoundings) {
  const auto precise = testing::store(12, at::kFloat), half = testing::store(12, GetParam());
  EXPECT_TRUE(half.values().equal(precise.values().to(GetParam())));
  EXPECT_EQ(half.gradients().scalar_type(), at::kFloat);
  Optimizer one(precise, all_of(precise), {}, {}), other(half, all_of(half), {}, {});
  for (int step = 1; step <= 5; ++step) {
    set_gradients(precise, step);
    set_gradients(half, step);
    one.step(1e-3, 1);
    other.step(1e-3, 1);
    EXPECT_TRUE(half.values().equal(precise.values().to(GetParam()))) << "step " << step;
  }
  const auto masters = other.state(), weights = one.state();
  for (std::size_t i = 0; i < masters.size(); ++i) EXPECT_TRUE(masters[i].flat.equal(weights[i].flat)) << i;
}
INSTANTIATE_TEST_SUITE_P(Dtypes, HalfPrecision, ::testing::Values(at::kBFloat16, at::kHalf));

TEST(Masters, BeginAsTheValuesThatWereDrawnBeforeRounding) {
  const auto half = testing::store(0, at::kBFloat16), precise = testing::store(0, at::kFloat);
  const Optimizer optimizer(half, all_of(half), {}, {});
  bool rounded = false;
  for (const auto& slice : optimizer.state()) {
    if (!slice.kind.empty()) continue;
    EXPECT_TRUE(slice.flat.equal(precise.all()[slice.parameter]->value.detach().view({-1})));
    rounded = rounded || !slice.flat.equal(half.all()[slice.parameter]->value.detach().view({-1}).to(at::kFloat));
  }
  EXPECT_TRUE(rounded) << "every value was a bf16 number";
}

/// Trains `store` as the whole and as one of `num_ranks` for each rank; owned elements must have the same bits.
void compare_shards(int num_ranks, at::ScalarType dtype, const OptimizerOptions& options) {
  const auto specs = testing::specs();
  const auto make = [&] {
    return parallel::ParameterStore(specs, plan::buffer_layout(specs, 12, plan::sharded_padding(num_ranks)), dtype,
                                    at::kCPU, 7);
  };
  const auto whole = make();
  Optimizer full(whole, all_of(whole), {}, options);
  for (int step = 1; step <= 3; ++step) {
    set_gradients(whole, step);
    full.step(1e-2, 0.5);
  }
  std::int64_t bytes = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto store = make();
    const auto owned = plan::shards(store.layout(), num_ranks, rank);
    Optimizer part(store, owned, {}, options);
    for (int step = 1; step <= 3; ++step) {
      set_gradients(store, step);
      part.step(1e-2, 0.5);
    }
    for (const auto& shard : owned) {
      const auto own = [&](const at::Tensor& buffer) {
        return buffer.narrow(0, shard.world.begin, shard.world.size());
      };
      EXPECT_TRUE(own(store.values()).equal(own(whole.values()))) << "rank " << rank << " of " << num_ranks;
    }
    bytes += part.bytes();
  }
  EXPECT_EQ(bytes, full.bytes());
}

TEST(ShardedOptimizer, ShiftsWhatHasNoGradientByTheNumbersGivenAlone) {
  const std::vector<double> change{0.25, -0.5, 0.125, 0, 1, -0.25, 2};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const int ranks : {1, 2, 3}) {
      const auto specs = testing::specs();
      at::Tensor biases = at::zeros({7}, dtype);
      for (int rank = 0; rank < ranks; ++rank) {
        const parallel::ParameterStore store(specs, plan::buffer_layout(specs, 12, plan::sharded_padding(ranks)), dtype,
                                             at::kCPU, 7);
        const auto before = store.get("norm.weight")->value.detach().clone();
        Optimizer part(store, plan::shards(store.layout(), ranks, rank), {}, {});
        for (int step = 0; step < 2; ++step) {
          part.shift({{"second.bias", change}, {"elsewhere.bias", {1}}});
          part.step(1e-2, 1);  // of gradients that are zero
        }
        biases += store.get("second.bias")->value.detach() - 1;  // drawn as ones; of elements of others nothing
        EXPECT_TRUE(store.get("norm.weight")->value.equal(before));
      }
      EXPECT_TRUE(biases.equal(at::tensor(change).to(dtype) * 2)) << biases;
    }
}

TEST(ShardedOptimizer, UpdatesItsElementsAsTheWholeOneDoesAndKeepsStateOfNoOthers) {
  for (const int num_ranks : {1, 2, 3, 5})
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) compare_shards(num_ranks, dtype, {});
}

TEST(ShardedOptimizer, RoundsAtRandomAsTheWholeOneDoes) {
  compare_shards(3, at::kBFloat16, {.bf16_state = true, .stochastic_rounding = true, .seed = 3});
}

TEST(StochasticRounding, IsTheSameForSlicesOfTensorParallelRanks) {
  const auto train = [](const parallel::ParameterStore& store, std::uint64_t seed) {
    Optimizer optimizer(store, all_of(store), {}, {.bf16_state = true, .stochastic_rounding = true, .seed = seed});
    for (int step = 1; step <= 3; ++step) {
      set_gradients(store, step);
      optimizer.step(1e-2, 1);
    }
  };
  const auto whole = testing::store(12, at::kBFloat16), again = testing::store(12, at::kBFloat16);
  train(whole, 5);
  train(again, 6);
  EXPECT_FALSE(whole.values().equal(again.values())) << "nothing was drawn";
  for (int k = 0; k < 2; ++k) {
    const auto part = testing::store(12, at::kBFloat16, 2, k);
    train(part, 5);
    for (const auto& parameter : part.all()) {
      const auto full = whole.get(parameter->spec.name)->value.detach();
      EXPECT_TRUE(parameter->value.equal(megatron::testing::slice_of(full, parameter->spec))) << parameter->spec.name;
    }
  }
}

TEST(Optimizer, GoesOnFromItsSavedStateAsIfItHadNotStopped) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const Algorithm& algorithm : kAlgorithms) {
      const auto straight = testing::store(0, dtype), first = testing::store(0, dtype),
                 second = testing::store(0, dtype);
      Optimizer one(straight, all_of(straight), algorithm.optimizer, {}),
          before(first, all_of(first), algorithm.optimizer, {}), after(second, all_of(second), algorithm.optimizer, {});
      second.values().zero_();
      for (int step = 1; step <= 4; ++step) {
        for (const auto* store : {&straight, &first, &second}) set_gradients(*store, step);
        one.step(0.1, 1);
        if (step <= 2) before.step(0.1, 1);
        if (step == 2) {
          const auto from = before.state(), to = after.state();
          for (std::size_t i = 0; i < from.size(); ++i) to[i].flat.copy_(from[i].flat);
          second.values().copy_(first.values());
          after.set_steps(before.steps());
        }
        if (step > 2) after.step(0.1, 1);
      }
      EXPECT_TRUE(straight.values().equal(second.values())) << algorithm.name;
    }
}

TEST(Optimizer, StateNamesEveryElementOfEveryParameterOnce) {
  const auto store = testing::store(12, at::kBFloat16);
  const Optimizer optimizer(store, all_of(store), {}, {});
  std::map<std::string, std::int64_t> elements;
  for (const auto& slice : optimizer.state()) elements[slice.kind] += slice.flat.numel();
  std::int64_t all = 0;
  for (const auto& parameter : store.all()) all += parameter->spec.local_size();
  EXPECT_EQ(elements, (std::map<std::string, std::int64_t>{{"", all}, {"exp_avg", all}, {"exp_avg_sq", all}}));
}

TEST(Optimizer, KeepsMomentsInBf16WhereThatIsAskedFor) {
  const auto store = testing::store(12, at::kFloat);
  for (const bool bf16_state : {false, true}) {
    const Optimizer optimizer(store, all_of(store), {}, {.bf16_state = bf16_state});
    for (const auto& slice : optimizer.state())
      EXPECT_EQ(slice.flat.scalar_type(), bf16_state && !slice.kind.empty() ? at::kBFloat16 : at::kFloat) << slice.kind;
  }
}

TEST(Optimizer, GivesParametersRatesAndDecaysOfTheirOwn) {
  const auto store = testing::store(12);
  const auto before = store.values().clone();
  config::OptimizerConfig config;
  config.lr_mult = {"first.*=0", "*.bias=2"};
  config.wd_mult = {"norm.weight=1"};
  std::vector<plan::ParameterSpec> specs = testing::specs();
  Optimizer optimizer(store, all_of(store), {.name = "sgd", .sgd_momentum = 0},
                      {.weight_decay = 0.5, .multipliers = plan::multipliers(config, specs)});
  store.gradients().fill_(1);
  optimizer.step(0.1, 1);
  const auto change = [&](const char* name) {
    const auto parameter = store.get(name);
    return parameter->value.detach().view({-1})[0].item<double>() -
           before[parameter->value.storage_offset()].item<double>();
  };
  EXPECT_EQ(change("first.weight"), 0);
  EXPECT_NEAR(change("first.bias"), -0.2, 1e-15);  // the last pattern counts
  EXPECT_NEAR(change("norm.weight"), -0.1 - 0.1 * 0.5 * 1, 1e-15);
}

TEST(Optimizer, GivesWordEmbeddingAndOutputLayerARateOfTheirOwn) {
  for (const bool tied : {true, false}) {
    const plan::ModelShape shape{.num_layers = 1,
                                 .hidden = 4,
                                 .num_heads = 2,
                                 .ffn_hidden = 8,
                                 .vocab = 6,
                                 .padded_vocab = 6,
                                 .max_positions = 3,
                                 .tied_output = tied};
    const auto specs = plan::model_parameters(shape, 1, 0);
    const parallel::ParameterStore store(specs, plan::buffer_layout(specs, 30), at::kDouble, at::kCPU, 7);
    const auto before = store.values().clone();
    for (const char* rule : {"sgd", "muon"}) {
      config::OptimizerConfig config{.name = rule, .sgd_momentum = 0};
      config.lr_mult = {"*.bias=2"};
      std::vector<std::vector<plan::MatrixRows>> matrices;
      for (const auto& spec : specs)
        matrices.push_back(spec.is_layer_matrix() ? plan::matrices_of(spec, shape) : std::vector<plan::MatrixRows>());
      Optimizer optimizer(store, all_of(store), config,
                          {.weight_decay = 0, .multipliers = plan::multipliers(config, specs), .matrices = matrices});
      store.values().copy_(before);
      store.gradients().fill_(1);
      optimizer.step({0.1, 0.7}, 1);
      int words = 0;
      for (const auto& parameter : store.all()) {
        const std::string& name = parameter->spec.name;
        const auto first = parameter->value.storage_offset();
        const double change = parameter->value.detach().view({-1})[0].item<double>() - before[first].item<double>();
        if (name == "embedding.word_embeddings.weight" || name == "output_layer.weight") {
          EXPECT_NEAR(change, -0.7, 1e-7) << name;
          ++words;
        } else if (!parameter->spec.is_layer_matrix() || rule == std::string("sgd")) {
          EXPECT_NEAR(change, name.ends_with(".bias") ? -0.2 : -0.1, 1e-7) << name << ", " << rule;
        }
      }
      EXPECT_EQ(words, tied ? 1 : 2);
    }
  }
}

}  // namespace
}  // namespace megatron::optim
