#include "megatron/parallel/parameter.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/testing/tensors.h"

namespace megatron::parallel {
namespace {

const plan::ModelShape kShape{.num_layers = 2,
                              .hidden = 8,
                              .num_heads = 4,
                              .ffn_hidden = 16,
                              .vocab = 30,
                              .padded_vocab = 32,
                              .max_positions = 6};

ParameterStore make(int t, int k, std::uint64_t seed = 5) {
  const auto specs = plan::model_parameters(kShape, t, k);
  return ParameterStore(specs, plan::buffer_layout(specs, 100), at::kDouble, at::kCPU, seed);
}

TEST(ParameterStore, DrawsTheSameWeightsHoweverTheyAreSplit) {
  const auto whole = make(1, 0);
  for (const int t : {2, 4})
    for (int k = 0; k < t; ++k) {
      const auto part = make(t, k);
      ASSERT_EQ(part.all().size(), whole.all().size());
      for (const auto& p : part.all()) {
        const auto full = whole.get(p->spec.name)->value;
        EXPECT_TRUE(at::equal(p->value, megatron::testing::slice_of(full, p->spec))) << p->spec.name;
      }
    }
}

TEST(ParameterStore, InitializesAsTheSpecSaysAndBySeed) {
  const auto store = make(1, 0), other = make(1, 0, 6);
  EXPECT_TRUE(store.get("decoder.layers.1.input_layernorm.weight")->value.eq(1).all().item<bool>());
  EXPECT_TRUE(store.get("decoder.layers.1.mlp.linear_fc1.bias")->value.eq(0).all().item<bool>());
  const std::string name = "decoder.layers.0.mlp.linear_fc1.weight";
  EXPECT_NEAR(store.get(name)->value.detach().std().item<double>(), 0.02, 0.004);
  EXPECT_FALSE(at::equal(store.get(name)->value, other.get(name)->value));
  EXPECT_FALSE(at::equal(store.get(name)->value, store.get("decoder.layers.1.mlp.linear_fc1.weight")->value));
}

TEST(ParameterStore, ParametersAndGradientsAreViewsOfTheBuffers) {
  const auto store = make(2, 1);
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const auto& p = store.all()[i];
    const auto& slot = store.layout().slot_of(static_cast<int>(i));
    p->grad.fill_(static_cast<double>(i + 1));
    EXPECT_TRUE(store.gradients().slice(0, slot.begin, slot.end).eq(static_cast<double>(i + 1)).all().item<bool>());
    EXPECT_TRUE(at::equal(store.values().narrow(0, slot.begin, p->value.numel()), p->value.detach().view({-1})));
    EXPECT_TRUE(p->value.is_leaf() && p->value.requires_grad());
    covered += p->grad.numel();
  }
  EXPECT_EQ(store.gradients().count_nonzero().item<std::int64_t>(), covered);  // the gaps are zero
}

TEST(ParameterStore, HoldsTheSameValuesAndNoGradientsForAModelThatOnlyComputesForward) {
  const auto specs = plan::model_parameters(kShape, 1, 0);
  const ParameterStore bare(specs, plan::buffer_layout(specs, 100), at::kDouble, at::kCPU, 5,
                            ParameterStore::Gradients::None);
  EXPECT_TRUE(at::equal(bare.values(), make(1, 0).values()));
  EXPECT_EQ(bare.gradients().numel(), 0);
  for (const auto& p : bare.all()) EXPECT_FALSE(p->grad.defined() || p->value.requires_grad()) << p->spec.name;
}

TEST(ParameterStore, NamesAParameterThatItDoesNotHold) {
  try {
    make(1, 0).get("decoder.layers.7.mlp.linear_fc1.bias");
    FAIL() << "found";
  } catch (const std::out_of_range& e) {
    EXPECT_NE(std::string(e.what()).find("decoder.layers.7.mlp.linear_fc1.bias"), std::string::npos);
  }
}

TEST(Parameter, TellsWhoWatchesOfEachContributionAndBeforeTheFirst) {
  Parameter parameter;
  int before = 0, after = 0;
  parameter.watch([&] { ++before; }, [&] { ++after; });
  EXPECT_EQ(parameter.beta(), 0);
  for (int contribution = 1; contribution <= 2; ++contribution) {
    (void)parameter.gradient_to_write();
    EXPECT_EQ(before, 1);
    parameter.gradient_written();
    EXPECT_EQ(after, contribution);
    EXPECT_EQ(parameter.beta(), 1);
  }
  parameter.clear_gradient();
  EXPECT_EQ(parameter.beta(), 0);
  (void)parameter.gradient_to_write();
  EXPECT_EQ(before, 2);
  parameter.watch(nullptr, nullptr);
  parameter.gradient_written();
  EXPECT_EQ(after, 2);
}

/// Two data-parallel ranks; each bucket holds one parameter or two.
ParameterStore pooled(int rank) {
  const auto specs = plan::model_parameters(kShape, 1, 0);
  auto layout = plan::buffer_layout(specs, 100, plan::sharded_padding(2));
  PooledGradients gradients{plan::gradient_pool(layout, specs, {.overlap = false}), plan::shards(layout, 2, rank)};
  return ParameterStore(specs, std::move(layout), at::kDouble, at::kCPU, 5, ParameterStore::Gradients::Hold,
                        std::move(gradients));
}

TEST(ParameterStore, HoldsPooledGradientsWhereThePlanSaysAndSumsOfItsShards) {
  const auto store = pooled(1);
  const auto& [pool, owned] = *store.pooled();
  EXPECT_LT(pool.size, store.layout().size);
  EXPECT_EQ(store.gradient_bytes(), 8 * (pool.size + store.layout().size / 2));
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const auto& slot = store.layout().slot_of(static_cast<int>(i));
    const auto bucket = static_cast<std::size_t>(slot.bucket);
    store.all()[i]->grad.fill_(static_cast<double>(i + 1));
    const std::int64_t begin = slot.begin - store.layout().buckets[bucket].begin;
    EXPECT_TRUE(
        store.bucket_gradients(bucket).slice(0, begin, begin + slot.end - slot.begin).eq(i + 1).all().item<bool>());
    EXPECT_EQ(store.bucket_gradients(bucket).storage_offset(), pool.begin[bucket]);
  }
  for (const plan::Shard& shard : owned)
    store.summed_gradients(shard.world).fill_(static_cast<double>(shard.state + 1));
  for (const plan::Shard& shard : owned) {
    const plan::Range last{shard.world.end - 1, shard.world.end};
    EXPECT_EQ(store.summed_gradients(last).item<double>(), static_cast<double>(shard.state + 1));
    EXPECT_THROW(store.summed_gradients({shard.world.begin - 1, shard.world.end}), std::logic_error);
  }
}

TEST(Contribution, WaitsForTheRestOfItsPassWhereItsGradientIsPooled) {
  for (const bool pool : {false, true}) {
    const auto store = pool ? pooled(0) : make(1, 0);
    const auto& norm = store.get("decoder.final_layernorm.weight");
    for (const double value : {1.0, 2.0}) {
      store.gradient_queue().defer(true);
      Contribution contribution(norm, Contribution::When::WithTheRest);
      EXPECT_EQ(contribution.target().is_alias_of(norm->grad), !pool);
      if (contribution.beta() == 0)
        contribution.target().fill_(value);
      else
        contribution.target().add_(value);
      contribution.written();
    }
    EXPECT_EQ(norm->contributions(), pool ? 0 : 2);
    auto pieces = store.gradient_queue().take();
    store.gradient_queue().defer(false);
    run_pieces(std::move(pieces));
    EXPECT_EQ(norm->contributions(), 2);
    EXPECT_TRUE(norm->grad.eq(3).all().item<bool>());
  }
}

TEST(Contribution, OfNoParameterIsNothing) {
  Contribution none(nullptr);
  EXPECT_FALSE(none.target().defined());
  none.written();
}

TEST(GradientQueue, ComputesAtOnceUntilItIsAskedToDefer) {
  const auto store = make(1, 0);
  const auto& parameter = store.all().front();
  std::vector<int> done;
  parameter->contribute([&] { done.push_back(1); });
  EXPECT_EQ(done, (std::vector<int>{1}));
  store.gradient_queue().defer(true);
  for (const int k : {2, 3}) store.all().back()->contribute([&done, k] { done.push_back(k); });
  auto first = store.gradient_queue().take();
  parameter->contribute([&] { done.push_back(4); });
  auto second = store.gradient_queue().take();
  store.gradient_queue().defer(false);
  EXPECT_EQ(done.size(), 1U);
  EXPECT_EQ(first.size(), 2U);
  EXPECT_EQ(second.size(), 1U);
  run_pieces(std::move(second));
  run_pieces(std::move(first));
  EXPECT_EQ(done, (std::vector<int>{1, 4, 2, 3}));
  EXPECT_TRUE(store.gradient_queue().take().empty());
}

TEST(GradientQueue, LetsGoOfEachPieceAsSoonAsItIsDone) {
  const auto held = std::make_shared<int>();
  GradientQueue queue;
  queue.defer(true);
  long after_first = 0;
  queue.add([held] {});
  queue.add([&after_first, watch = std::weak_ptr<int>(held)] { after_first = watch.use_count(); });
  EXPECT_EQ(held.use_count(), 2);
  run_pieces(queue.take());
  EXPECT_EQ(after_first, 1);
}

}  // namespace
}  // namespace megatron::parallel
