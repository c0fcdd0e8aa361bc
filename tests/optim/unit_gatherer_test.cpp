#include "megatron/optim/unit_gatherer.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/optim/parameter_gatherer.h"

namespace megatron::optim {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kLayers = 5;

/// A matrix and a bias of each layer, and two vectors behind the layers.
std::vector<plan::ParameterSpec> layered_specs() {
  std::vector<plan::ParameterSpec> specs;
  for (std::int64_t layer = 1; layer <= kLayers; ++layer) {
    const std::string name = std::to_string(layer);
    specs.push_back({.name = name + ".weight", .shape = {30, 40}, .init = plan::Init::Normal, .init_std = 1});
    specs.push_back({.name = name + ".bias", .shape = {40}, .init = plan::Init::Normal, .init_std = 1});
    for (std::size_t i = specs.size() - 2; i < specs.size(); ++i) specs[i].depth = layer;
  }
  for (const char* name : {"end.weight", "end.bias"}) {
    specs.push_back({.name = name, .shape = {40}, .init = plan::Init::One});
    specs.back().depth = kLayers + 1;
  }
  return specs;
}

/// Of it, a bucket a layer, which take turns.
parallel::ParameterStore shared_values(int rank) {
  auto specs = layered_specs();
  for (plan::ParameterSpec& spec : specs) spec.stage = static_cast<int>(spec.depth);  // where a bucket ends
  auto layout = plan::buffer_layout(specs, 0, plan::sharded_padding(kRanks));
  for (plan::ParameterSpec& spec : specs) spec.stage = 0;
  const plan::Owners owners{{kRanks, rank}, {kRanks, rank}};
  parallel::PooledValues values{plan::parameter_pool(layout, specs, owners, {{.num_layers = kLayers}}),
                                plan::shards(layout, owners)};
  return {std::move(specs), std::move(layout), at::kDouble, at::kCPU, 7, parallel::ParameterStore::Gradients::None,
          std::nullopt,     std::move(values)};
}

/// The same, whole.
parallel::ParameterStore whole_values() {
  auto specs = layered_specs();
  auto layout = plan::buffer_layout(specs, 0);
  return {std::move(specs), std::move(layout), at::kDouble, at::kCPU, 7, parallel::ParameterStore::Gradients::None};
}

bool is_whole(const parallel::ParameterStore& store, const parallel::ParameterStore& want, const std::string& name) {
  return store.get(name)->arrived().equal(want.get(name)->value);
}

TEST(UnitGatherer, GivesWhoReadsTheValuesOfAllRanks) {
  const auto want = whole_values();
  for (const bool overlap : {true, false})
    comm::run_ranks(kRanks, [&](const comm::Group& dp) {
      const auto store = shared_values(dp.rank());
      const auto& [pool, owned] = *store.pooled_values();
      EXPECT_LT(pool.size, store.layout().size / 2);
      EXPECT_EQ(store.value_bytes(), 8 * (pool.size + store.layout().size / kRanks));
      UnitGatherer gatherer(store, dp, overlap, {});
      const plan::UnitOrders& orders = pool.orders.at(0);
      for (int pass = 0; pass < 4; ++pass) {
        gatherer.begin(pass % 2 == 0 ? orders.forward : orders.backward, -1);
        for (std::int64_t l = 1; l <= kLayers; ++l) {
          const std::string name = std::to_string(pass % 2 == 0 ? l : kLayers + 1 - l);
          for (const char* part : {".bias", ".weight"}) EXPECT_TRUE(is_whole(store, want, name + part)) << name << part;
        }
        gatherer.settle();
      }
    });
}

TEST(UnitGatherer, GathersAgainWhatHasChanged) {
  comm::run_ranks(kRanks, [&](const comm::Group& dp) {
    const auto store = shared_values(dp.rank());
    const auto& owned = store.pooled_values()->owned;
    const ParameterGatherer gatherer(store, dp, owned, true);
    for (int step = 1; step <= 2; ++step) {
      for (const plan::Shard& shard : owned) store.owned_values(shard.world).fill_(step);
      gatherer.start();
      for (const auto& parameter : store.all())
        EXPECT_TRUE((parameter->arrived() == step).all().item<bool>()) << parameter->spec.name;
    }
  });
}

// One operator adds the bias of a layer and takes the next one's norm: what comes after that must not come to the bias.
TEST(UnitGatherer, LeavesALayerInPlaceUntilAMatrixOfTheNextIsRead) {
  const auto want = whole_values();
  comm::run_ranks(kRanks, [&](const comm::Group& ranks) {
    const comm::Group dp = comm::CountingBackend::wrap(ranks);
    const auto store = shared_values(dp.rank());
    const auto gathered = [&] { return comm::CountingBackend::of(dp).count("all_gather").calls; };
    UnitGatherer gatherer(store, dp, true, {});
    gatherer.begin(store.pooled_values()->pool.orders.at(0).forward, -1);
    EXPECT_TRUE(is_whole(store, want, "1.weight"));
    for (std::int64_t l = 1; l + 1 < kLayers; ++l) {
      const std::string here = std::to_string(l), next = std::to_string(l + 1);
      const at::Tensor bias = store.get(here + ".bias")->arrived().detach();
      EXPECT_TRUE(is_whole(store, want, next + ".bias"));
      EXPECT_EQ(gathered(), l + 1) << "one to the place of layer " << l << " is on its way";
      EXPECT_TRUE(bias.equal(want.get(here + ".bias")->value)) << here;
      EXPECT_TRUE(is_whole(store, want, next + ".weight"));
      EXPECT_EQ(gathered(), l + 2);
    }
  });
}

TEST(UnitGatherer, GathersEachLayerOncePerPassAndNothingThatIsThere) {
  comm::run_ranks(kRanks, [&](const comm::Group& ranks) {
    const comm::Group dp = comm::CountingBackend::wrap(ranks);
    const auto store = shared_values(dp.rank());
    const plan::ParameterPool& pool = store.pooled_values()->pool;
    UnitGatherer gatherer(store, dp, true, {});
    const auto read = [&](const std::vector<int>& order, int next) {
      gatherer.begin(order, next);
      for (const int unit : order)
        for (const int parameter :
             store.layout()
                 .buckets[static_cast<std::size_t>(pool.units[static_cast<std::size_t>(unit)].buckets[0])]
                 .parameters)
          store.all()[static_cast<std::size_t>(parameter)]->arrived();
    };
    const auto& [forward, backward, partial] = pool.orders.at(0);
    std::vector<int> both = forward;
    both.insert(both.end(), backward.begin(), backward.end());
    read(forward, backward.front());
    EXPECT_EQ(comm::CountingBackend::of(dp).count("all_gather").calls, kLayers + 1);
    read(backward, -1);
    gatherer.settle();
    // Bytes that a rank brings are a share of what is gathered.
    EXPECT_EQ(comm::CountingBackend::of(dp).count("all_gather").bytes * kRanks, 8 * gathered_elements(pool, both));
  });
}

}  // namespace
}  // namespace megatron::optim
