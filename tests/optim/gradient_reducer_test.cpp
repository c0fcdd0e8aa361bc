#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/optim/gradient_reducer.h"
#include "megatron/optim/parameter_gatherer.h"
#include "tests/optim/hand_made_store.h"

namespace megatron::optim {
namespace {

// A transport of one rank that writes down what is asked of it, and doubles what it "sums".
class Recorder : public comm::Backend {
 public:
  struct Done : comm::Work {
    void wait() override {}
  };
  std::vector<std::int64_t> reduced;    // elements of each all-reduce, in order
  std::vector<std::int64_t> scattered;  // of each reduce-scatter

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "recorder"; }
  comm::WorkHandle all_reduce(at::Tensor inout, comm::ReduceOp) override {
    reduced.push_back(inout.numel());
    inout.mul_(2);
    return std::make_shared<Done>();
  }
  comm::WorkHandle all_gather(at::Tensor, at::Tensor) override { return unexpected(); }
  comm::WorkHandle reduce_scatter(at::Tensor, at::Tensor in, comm::ReduceOp) override {
    scattered.push_back(in.numel());
    in.mul_(2);
    return std::make_shared<Done>();
  }
  comm::WorkHandle broadcast(at::Tensor, int) override { return unexpected(); }
  comm::WorkHandle all_to_all(at::Tensor, at::Tensor) override { return unexpected(); }
  comm::WorkHandle send(at::Tensor, int, int) override { return unexpected(); }
  comm::WorkHandle recv(at::Tensor, int, int) override { return unexpected(); }
  comm::WorkHandle barrier() override { return unexpected(); }
  std::shared_ptr<comm::Backend> split(const std::vector<int>&) override { return nullptr; }
  void abort(const std::string&) override {}

 private:
  static comm::WorkHandle unexpected() { throw std::logic_error("the reducer has no business with this collective"); }
};

/// A rank that owns everything.
std::vector<plan::Shard> whole(const parallel::ParameterStore& store) { return plan::shards(store.layout(), 1, 0); }

void contribute(const parallel::ParameterStore& store, const std::string& name, double value) {
  const auto& parameter = store.get(name);
  parallel::Contribution contribution(parameter);
  if (contribution.beta() == 0)
    contribution.target().fill_(value);
  else
    contribution.target().add_(value);
  contribution.written();
}

// Buffer order is the reverse of the forward pass; 12 elements close a bucket: {norm.weight, second.bias, …}, …
class GradientReducerTest : public ::testing::Test {
 protected:
  parallel::ParameterStore store_ = testing::store(12);
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();

  std::vector<std::string> names_of_bucket(std::size_t bucket) const {
    std::vector<std::string> names;
    for (const int p : store_.layout().buckets.at(bucket).parameters)
      names.push_back(store_.all()[static_cast<std::size_t>(p)]->spec.name);
    return names;
  }
  std::int64_t size_of_bucket(std::size_t bucket) const {
    return store_.layout().buckets.at(bucket).end - store_.layout().buckets.at(bucket).begin;
  }
};

TEST_F(GradientReducerTest, StartsABucketWhenItsLastGradientOfTheLastMicrobatchIsWritten) {
  ASSERT_GE(store_.layout().buckets.size(), 2u);
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), /*overlap=*/true);
  reducer.begin_step(2);
  for (std::size_t bucket = 0; bucket < store_.layout().buckets.size(); ++bucket)
    for (const auto& name : names_of_bucket(bucket)) contribute(store_, name, 1);
  EXPECT_TRUE(recorder_->reduced.empty()) << "a reduction before the last microbatch";

  std::vector<std::int64_t> expected;
  for (std::size_t bucket = 0; bucket < store_.layout().buckets.size(); ++bucket) {
    for (const auto& name : names_of_bucket(bucket)) {
      EXPECT_EQ(recorder_->reduced, expected) << "before " << name;
      contribute(store_, name, 10);
    }
    expected.push_back(size_of_bucket(bucket));
    EXPECT_EQ(recorder_->reduced, expected);
  }
  reducer.finish();
  EXPECT_EQ(recorder_->reduced, expected) << "finish reduced a bucket again";
  for (const auto& parameter : store_.all())
    EXPECT_TRUE(at::equal(parameter->grad, at::full_like(parameter->grad, 22))) << parameter->spec.name;
}

TEST_F(GradientReducerTest, KeepsTheOrderOfBucketsWhenALaterOneIsCompleteFirst) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), true);
  reducer.begin_step(1);
  for (const auto& name : names_of_bucket(1)) contribute(store_, name, 1);
  EXPECT_TRUE(recorder_->reduced.empty());
  for (const auto& name : names_of_bucket(0)) contribute(store_, name, 1);
  EXPECT_EQ(recorder_->reduced, (std::vector<std::int64_t>{size_of_bucket(0), size_of_bucket(1)}));
}

TEST_F(GradientReducerTest, WithoutOverlapReducesInFinishAlone) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), false);
  reducer.begin_step(1);
  for (const auto& parameter : store_.all()) contribute(store_, parameter->spec.name, 1);
  EXPECT_TRUE(recorder_->reduced.empty());
  reducer.finish();
  EXPECT_EQ(recorder_->reduced.size(), store_.layout().buckets.size());
}

TEST_F(GradientReducerTest, AGradientWithoutContributionIsZeroNotThatOfTheStepBefore) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), true);
  reducer.begin_step(1);
  for (const auto& parameter : store_.all()) contribute(store_, parameter->spec.name, 5);
  reducer.finish();
  reducer.begin_step(1);
  for (const auto& parameter : store_.all())
    if (parameter->spec.name != "second.bias") contribute(store_, parameter->spec.name, 3);
  reducer.finish();
  EXPECT_TRUE(at::equal(store_.get("second.bias")->grad, at::zeros_like(store_.get("second.bias")->grad)));
  EXPECT_TRUE(at::equal(store_.get("norm.weight")->grad, at::full_like(store_.get("norm.weight")->grad, 6)));
}

TEST_F(GradientReducerTest, ADestroyedReducerIsNoLongerCalled) {
  { GradientReducer(store_, comm::Group(recorder_), whole(store_), true).begin_step(1); }
  for (const auto& parameter : store_.all()) contribute(store_, parameter->spec.name, 1);
  EXPECT_TRUE(recorder_->reduced.empty());
}

/// Two pipeline stages: the first two parameters, and the other three. Backward finishes stage 1 first, as in most
/// schedules, and so it comes first in the buffer.
parallel::ParameterStore staged_store() {
  auto specs = testing::specs();
  for (std::size_t p = 2; p < specs.size(); ++p) specs[p].stage = 1;
  const auto layout = plan::buffer_layout(specs, 12);
  return {std::move(specs), layout, at::kDouble, at::kCPU, 7};
}

std::vector<std::string> names_of_stage(const parallel::ParameterStore& store, int stage) {
  std::vector<std::string> names;
  for (const auto& bucket : store.layout().buckets)
    for (const int p : bucket.parameters)
      if (bucket.stage == stage) names.push_back(store.all()[static_cast<std::size_t>(p)]->spec.name);
  return names;
}

std::vector<std::int64_t> bucket_sizes(const parallel::ParameterStore& store, const std::vector<int>& stages) {
  std::vector<std::int64_t> sizes;
  for (const int stage : stages)
    for (const auto& bucket : store.layout().buckets)
      if (bucket.stage == stage) sizes.push_back(bucket.end - bucket.begin);
  return sizes;
}

class ReducerByStage : public ::testing::Test {
 protected:
  parallel::ParameterStore store_ = staged_store();
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
};

TEST_F(ReducerByStage, AStageDoesNotWaitForAnotherThatLiesBeforeItInTheBuffer) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), true);
  reducer.begin_step(1);
  for (const auto& name : names_of_stage(store_, 0)) contribute(store_, name, 1);
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {0}));
  for (const auto& name : names_of_stage(store_, 1)) contribute(store_, name, 1);
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {0, 1}));
  reducer.finish();
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {0, 1}));
}

TEST_F(ReducerByStage, StartsTheRestOfAStageOnceWhenAskedTo) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), true);
  store_.gradients().fill_(4);
  reducer.begin_step(1);
  const auto names = names_of_stage(store_, 1);
  for (const auto& name : names)
    if (name != names.front()) contribute(store_, name, 1);  // the first gets no gradient on this rank
  EXPECT_TRUE(recorder_->reduced.empty());
  reducer.start_stage(1);
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {1}));
  reducer.start_stage(1);
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {1}));
  EXPECT_TRUE(at::equal(store_.get(names.front())->grad, at::zeros_like(store_.get(names.front())->grad)));
  EXPECT_TRUE(at::equal(store_.get(names.back())->grad, at::full_like(store_.get(names.back())->grad, 2)));
  reducer.finish();
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {1, 0}));
}

TEST_F(ReducerByStage, WithoutOverlapAStageWaitsForTheEndToo) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), false);
  reducer.begin_step(1);
  for (const auto& parameter : store_.all()) contribute(store_, parameter->spec.name, 1);
  reducer.start_stage(1);
  reducer.start_stage(0);
  EXPECT_TRUE(recorder_->reduced.empty());
  reducer.finish();
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {1, 0}));
}

TEST_F(ReducerByStage, WaitsForWeightGradientsThatWerePutOff) {
  GradientReducer reducer(store_, comm::Group(recorder_), whole(store_), true);
  reducer.begin_step(2);
  store_.gradient_queue().defer(true);
  for (int microbatch = 0; microbatch < 2; ++microbatch)
    for (const auto& name : names_of_stage(store_, 1))
      store_.get(name)->contribute([this, name] { contribute(store_, name, 1); });
  auto pieces = store_.gradient_queue().take();
  auto last = std::move(pieces.back());
  pieces.pop_back();
  parallel::run_pieces(std::move(pieces));
  EXPECT_NE(recorder_->reduced, bucket_sizes(store_, {1}));
  last();
  EXPECT_EQ(recorder_->reduced, bucket_sizes(store_, {1}));
}

TEST(ReducerOrder, IsTheSameOnRanksThatWriteTheGradientsOfAnOperationInAnyOrder) {
  // Input gradients of both stages, then the weight gradients put off, the first stage's before the second's.
  const std::vector<std::vector<std::string>> operations = {
      {"norm.weight", "second.bias"}, {"first.bias"}, {"first.weight"}, {"second.weight"}};
  std::vector<std::int64_t> expected;
  std::mt19937 random(5);
  for (int rank = 0; rank < 20; ++rank) {
    const auto store = staged_store();
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(store, comm::Group(recorder), whole(store), true);
    reducer.begin_step(1);
    for (auto operation : operations) {
      std::shuffle(operation.begin(), operation.end(), random);
      for (const auto& name : operation) contribute(store, name, 1);
    }
    reducer.finish();
    if (rank == 0) expected = recorder->reduced;
    EXPECT_EQ(recorder->reduced, expected);
  }
  EXPECT_NE(expected, bucket_sizes(staged_store(), {1, 0}))
      << "an order that the buffer alone would give shows nothing";
}

TEST(GradientReducer, SumsOverTheRanksOfTheGroup) {
  comm::run_ranks(3, [](const comm::Group& dp) {
    for (const bool overlap : {true, false}) {
      const auto store = testing::store(12);
      GradientReducer reducer(store, dp, whole(store), overlap);
      for (int step = 0; step < 2; ++step) {
        reducer.begin_step(2);
        for (int microbatch = 0; microbatch < 2; ++microbatch)
          for (const auto& parameter : store.all())
            contribute(store, parameter->spec.name, dp.rank() + microbatch + step);
        reducer.finish();
        for (const auto& parameter : store.all())
          EXPECT_TRUE(at::equal(parameter->grad, at::full_like(parameter->grad, 2 * (0 + 1 + 2) + 3 * (1 + 2 * step))))
              << parameter->spec.name << " of rank " << dp.rank();
      }
    }
  });
}

/// Buckets that three ranks share.
parallel::ParameterStore shared_store() {
  const auto specs = testing::specs();
  return {specs, plan::buffer_layout(specs, 12, plan::sharded_padding(3)), at::kDouble, at::kCPU, 7};
}

TEST(GradientReducer, LeavesARankTheSumOfWhatItOwnsWhereItLies) {
  comm::run_ranks(3, [](const comm::Group& dp) {
    const auto store = shared_store();
    const auto counting = comm::CountingBackend::wrap(dp);
    const auto owned = plan::shards(store.layout(), 3, dp.rank());
    GradientReducer reducer(store, counting, owned, true);
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step(1);
      for (const auto& parameter : store.all()) contribute(store, parameter->spec.name, dp.rank() + 1 + step);
      reducer.finish();
      for (const auto& shard : owned)
        for (const auto& part : shard.parameters) {
          const auto got = store.gradients().narrow(0, part.world.begin, part.world.size());
          EXPECT_TRUE((got == 6 + 3 * step).all().item<bool>()) << "rank " << dp.rank();
        }
    }
    const auto& counts = comm::CountingBackend::of(counting).counts();
    EXPECT_EQ(counts.size(), 1U);
    EXPECT_EQ(counts.at("reduce_scatter").calls, 2 * static_cast<std::int64_t>(owned.size()));
  });
}

/// Every second layer of a model: two parameters, two, and the norm.
std::vector<plan::ParameterSpec> specs_with_depths() {
  auto specs = testing::specs();
  for (std::size_t p = 0; p < specs.size(); ++p) specs[p].depth = 1 + 2 * static_cast<std::int64_t>(p / 2);
  return specs;
}

/// Of it, in buckets of `bucket_size` elements or more that take turns, shared by `num_ranks`.
parallel::ParameterStore pooled_store(int num_ranks, int rank, std::int64_t bucket_size = 12, bool overlap = true) {
  auto specs = specs_with_depths();
  auto layout = plan::buffer_layout(specs, bucket_size, plan::sharded_padding(num_ranks));
  parallel::PooledGradients pooled{plan::gradient_pool(layout, specs, {.overlap = overlap}),
                                   plan::shards(layout, num_ranks, rank)};
  return {std::move(specs), std::move(layout), at::kDouble, at::kCPU, 7, parallel::ParameterStore::Gradients::Hold,
          std::move(pooled)};
}

const std::vector<std::string> kBackward = {"norm.weight", "second.weight", "second.bias", "first.weight",
                                            "first.bias"};

TEST(PooledGradients, AreSummedOverRanksAndMicrobatchesWithZerosBetweenThem) {
  for (const bool overlap : {true, false})
    comm::run_ranks(3, [&](const comm::Group& dp) {
      const auto store = pooled_store(3, dp.rank(), 12, overlap);
      ASSERT_LT(store.pooled()->pool.size, store.layout().size);
      store.gradients().fill_(std::numeric_limits<double>::quiet_NaN());  // what others have left there
      const auto counting = comm::CountingBackend::wrap(dp);
      const auto& owned = store.pooled()->owned;
      GradientReducer reducer(store, counting, owned, overlap);
      for (int step = 0; step < 2; ++step) {
        reducer.begin_step(2);
        for (int microbatch = 0; microbatch < 2; ++microbatch)
          for (std::size_t i = 0; i < kBackward.size(); ++i)
            contribute(store, kBackward[i], (1 + dp.rank()) * (1 + 10 * microbatch + static_cast<int>(i) + step));
        reducer.finish();
        for (const auto& shard : owned) {
          const auto sum = store.summed_gradients(shard.world);
          auto want = at::zeros_like(sum);
          for (const auto& part : shard.parameters) {
            const std::string& name = store.all()[static_cast<std::size_t>(part.parameter)]->spec.name;
            const auto i = std::find(kBackward.begin(), kBackward.end(), name) - kBackward.begin();
            want.narrow(0, part.local.begin, part.local.size())
                .fill_(6.0 * (2 * (1 + static_cast<double>(i) + step) + 10));
          }
          EXPECT_TRUE(at::equal(sum, want)) << "rank " << dp.rank();
        }
      }
      const auto& counts = comm::CountingBackend::of(counting).counts();
      EXPECT_EQ(counts.size(), 1U);
      EXPECT_EQ(counts.at("reduce_scatter").calls, 2 * 2 * static_cast<std::int64_t>(owned.size()));
    });
}

TEST(PooledGradients, OfAParameterWithoutContributionAreZeroNotThoseOfTheStepBefore) {
  const auto store = pooled_store(2, 1);
  GradientReducer reducer(store, comm::Group(std::make_shared<Recorder>()), store.pooled()->owned, true);
  for (const int step : {1, 2}) {
    reducer.begin_step(1);
    for (const auto& name : kBackward)
      if (step == 1 || name == "norm.weight") contribute(store, name, 5);  // the bias beside it belongs to this rank
    reducer.finish();
    double sum = 0;
    for (const auto& shard : store.pooled()->owned) {
      for (const auto& part : shard.parameters)
        EXPECT_NE(store.all()[static_cast<std::size_t>(part.parameter)]->spec.name, "norm.weight");
      sum += store.summed_gradients(shard.world).sum().item<double>();
    }
    EXPECT_EQ(sum > 0, step == 1);
  }
}

TEST(PooledGradients, TakeContributionsOfTheNextMicrobatchThatComeEarly) {
  auto specs = specs_with_depths();
  specs[0].gradient_uses = 2;  // "first.weight": also written by forward passes
  specs[0].in_forward = true;
  auto layout = plan::buffer_layout(specs, 12, plan::sharded_padding(2));
  parallel::PooledGradients pooled{plan::gradient_pool(layout, specs, {}), plan::shards(layout, 2, 0)};
  const parallel::ParameterStore store(specs, layout, at::kDouble, at::kCPU, 7,
                                       parallel::ParameterStore::Gradients::Hold, std::move(pooled));
  const auto recorder = std::make_shared<Recorder>();
  GradientReducer reducer(store, comm::Group(recorder), store.pooled()->owned, true);
  reducer.begin_step(2);
  for (const double value : {1.0, 2.0}) contribute(store, "first.weight", value);  // two forward passes
  EXPECT_TRUE(recorder->scattered.empty()) << "others come first";
  for (int microbatch = 0; microbatch < 2; ++microbatch)
    for (const auto& name : kBackward) contribute(store, name, 10);
  EXPECT_EQ(recorder->scattered.size(), 2 * store.layout().buckets.size());
  reducer.finish();
  EXPECT_EQ(recorder->scattered.size(), 2 * store.layout().buckets.size());
  for (const auto& shard : store.pooled()->owned)
    for (const auto& part : shard.parameters)
      EXPECT_TRUE(store.summed_gradients(part.world).eq(part.parameter == 0 ? 46 : 40).all().item<bool>())
          << store.all()[static_cast<std::size_t>(part.parameter)]->spec.name;
}

TEST(PooledGradients, StartInOneOrderOnRanksThatWriteThoseOfAnOperationInAnyOrder) {
  std::vector<std::int64_t> expected;
  std::mt19937 random(9);
  for (int rank = 0; rank < 20; ++rank) {
    const auto store = pooled_store(2, 0, 1);
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(store, comm::Group(recorder), store.pooled()->owned, true);
    reducer.begin_step(2);
    for (int microbatch = 0; microbatch < 2; ++microbatch)
      for (std::vector<std::string> layer : {std::vector<std::string>{"norm.weight"},
                                             {"second.weight", "second.bias"},
                                             {"first.weight", "first.bias"}}) {
        std::shuffle(layer.begin(), layer.end(), random);
        for (const auto& name : layer) contribute(store, name, 1);
      }
    reducer.finish();
    if (rank == 0) expected = recorder->scattered;
    EXPECT_EQ(recorder->scattered.size(), 2 * store.layout().buckets.size());
    EXPECT_EQ(recorder->scattered, expected);
  }
}

TEST(PooledGradients, AreNotOverwrittenWhereThePlanIsWrong) {
  auto specs = testing::specs();
  auto layout = plan::buffer_layout(specs, 1, plan::sharded_padding(2));
  plan::GradientPool everything_at_once{128, std::vector<std::int64_t>(layout.buckets.size(), 0)};
  const parallel::ParameterStore store(specs, layout, at::kDouble, at::kCPU, 7,
                                       parallel::ParameterStore::Gradients::Hold,
                                       parallel::PooledGradients{everything_at_once, plan::shards(layout, 2, 0)});
  GradientReducer reducer(store, comm::Group(std::make_shared<Recorder>()), store.pooled()->owned, true);
  reducer.begin_step(1);
  contribute(store, "first.weight", 1);  // waits for those before it
  EXPECT_THROW(contribute(store, "second.weight", 1), std::logic_error);
}

TEST(ParameterGatherer, MakesTheSlicesOfAllRanksWholeForWhoAsks) {
  for (const bool overlap : {true, false})
    comm::run_ranks(3, [&](const comm::Group& dp) {
      const auto store = shared_store();
      const auto owned = plan::shards(store.layout(), 3, dp.rank());
      const ParameterGatherer gatherer(store, dp, owned, overlap);
      for (int step = 1; step <= 2; ++step) {
        for (const auto& shard : owned) store.values().narrow(0, shard.world.begin, shard.world.size()).fill_(step);
        gatherer.start();
        for (const auto& parameter : store.all())
          EXPECT_TRUE((parameter->arrived() == step).all().item<bool>()) << parameter->spec.name;
      }
    });
}

}  // namespace
}  // namespace megatron::optim
