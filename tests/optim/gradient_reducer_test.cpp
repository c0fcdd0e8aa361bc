#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "megatron/comm/local_backend.h"
#include "megatron/optim/optimizer.h"
#include "tests/optim/hand_made_store.h"

namespace megatron::optim {
namespace {

// A transport of one rank that writes down what is asked of it, and doubles what it "sums".
class Recorder : public comm::Backend {
 public:
  struct Done : comm::Work {
    void wait() override {}
  };
  std::vector<std::int64_t> reduced;  // elements of each all-reduce, in order

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "recorder"; }
  comm::WorkHandle all_reduce(at::Tensor inout, comm::ReduceOp) override {
    reduced.push_back(inout.numel());
    inout.mul_(2);
    return std::make_shared<Done>();
  }
  comm::WorkHandle all_gather(at::Tensor, at::Tensor) override { return unexpected(); }
  comm::WorkHandle reduce_scatter(at::Tensor, at::Tensor, comm::ReduceOp) override { return unexpected(); }
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

void contribute(const parallel::ParameterStore& store, const std::string& name, double value) {
  const auto parameter = store.get(name);
  if (parameter->beta() == 0)
    parameter->grad.fill_(value);
  else
    parameter->grad.add_(value);
  parameter->gradient_written();
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
  GradientReducer reducer(store_, comm::Group(recorder_), /*overlap=*/true);
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
  GradientReducer reducer(store_, comm::Group(recorder_), true);
  reducer.begin_step(1);
  for (const auto& name : names_of_bucket(1)) contribute(store_, name, 1);
  EXPECT_TRUE(recorder_->reduced.empty());
  for (const auto& name : names_of_bucket(0)) contribute(store_, name, 1);
  EXPECT_EQ(recorder_->reduced, (std::vector<std::int64_t>{size_of_bucket(0), size_of_bucket(1)}));
}

TEST_F(GradientReducerTest, WithoutOverlapReducesInFinishAlone) {
  GradientReducer reducer(store_, comm::Group(recorder_), false);
  reducer.begin_step(1);
  for (const auto& parameter : store_.all()) contribute(store_, parameter->spec.name, 1);
  EXPECT_TRUE(recorder_->reduced.empty());
  reducer.finish();
  EXPECT_EQ(recorder_->reduced.size(), store_.layout().buckets.size());
}

TEST_F(GradientReducerTest, AGradientWithoutContributionIsZeroNotThatOfTheStepBefore) {
  GradientReducer reducer(store_, comm::Group(recorder_), true);
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
  { GradientReducer(store_, comm::Group(recorder_), true).begin_step(1); }
  for (const auto& parameter : store_.all()) contribute(store_, parameter->spec.name, 1);
  EXPECT_TRUE(recorder_->reduced.empty());
}

TEST(GradientReducer, SumsOverTheRanksOfTheGroup) {
  comm::run_ranks(3, [](const comm::Group& dp) {
    for (const bool overlap : {true, false}) {
      const auto store = testing::store(12);
      GradientReducer reducer(store, dp, overlap);
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

}  // namespace
}  // namespace megatron::optim
