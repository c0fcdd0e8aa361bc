#include "megatron/comm/threads/local_backend.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <future>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_world.h"

namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor random(int rank, std::int64_t size, at::ScalarType dtype) {
  const at::Tensor t = at::empty({size}, at::kDouble);
  double* p = t.data_ptr<double>();
  for (std::int64_t i = 0; i < size; ++i)
    p[i] = random_word(1, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i)) / 2147483648.0 - 1.0;
  return t.to(dtype);
}

TEST(LocalBackend, SumsInRankOrderToTheBit) {
  for (const int ranks : {2, 3, 5})
    for (const auto dtype : {at::kFloat, at::kDouble})
      for (const std::int64_t size : {1, 15, 17, 100003}) {
        at::Tensor truth = random(0, size, dtype);
        for (int r = 1; r < ranks; ++r) truth = at::add(truth, random(r, size, dtype));
        run_ranks(ranks, [&](Group g) {
          const at::Tensor t = random(g.rank(), size, dtype);
          g.all_reduce(t);
          EXPECT_TRUE(t.equal(truth)) << ranks << " ranks, " << dtype << " size " << size;
        });
      }
}

TEST(LocalBackend, SumsHalfTypesInFloatAndRoundsOnce) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int ranks : {2, 4}) {
      at::Tensor truth = random(0, 10007, dtype).to(at::kFloat);
      for (int r = 1; r < ranks; ++r) truth = at::add(truth, random(r, 10007, dtype).to(at::kFloat));
      run_ranks(ranks, [&](Group g) {
        const at::Tensor t = random(g.rank(), 10007, dtype);
        g.all_reduce(t);
        EXPECT_TRUE(t.equal(truth.to(dtype))) << ranks << " ranks, " << dtype;
      });
    }
}

TEST(LocalBackend, KeepsNanAndInfinity) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    run_ranks(3, [&](Group g) {
      const std::vector<double> mine =
          g.rank() == 1 ? std::vector<double>{nan, inf, 1} : std::vector<double>{1, 1, -inf};
      const at::Tensor t = at::tensor(mine, at::kDouble).to(dtype), u = t.clone();
      g.all_reduce(t);
      EXPECT_TRUE(t[0].isnan().item<bool>() && t[1].item<double>() == inf && t[2].item<double>() == -inf) << dtype;
      g.all_reduce(u, ReduceOp::Max);
      EXPECT_TRUE(u[0].isnan().item<bool>() && u[1].item<double>() == inf && u[2].item<double>() == 1) << dtype;
    });
}

TEST(LocalBackend, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> come{0};
  run_ranks(8, [&](Group g) {
    for (int round = 1; round <= 100; ++round) {
      ++come;
      g.barrier();
      EXPECT_GE(come.load(), 8 * round);
      g.barrier();
    }
  });
}

/// Runs `call` on 3 ranks; every one must throw a message that holds `words`, and the next collective must work.
void expect_all_refuse(const std::function<void(const Group&)>& call, const std::string& words) {
  run_ranks(
      3,
      [&](Group g) {
        try {
          call(g);
          ADD_FAILURE() << "rank " << g.rank() << " was not told: " << words;
        } catch (const std::invalid_argument& e) {
          EXPECT_THAT(e.what(), HasSubstr(words));
        }
        const at::Tensor t = at::ones({2});
        g.all_reduce(t);
        EXPECT_EQ(t[0].item<float>(), 3);
      },
      milliseconds(20000));
}

TEST(LocalBackend, RefusesCallsThatDoNotFitTogetherOnEveryRank) {
  expect_all_refuse([](const Group& g) { g.all_reduce(at::ones({g.rank() == 1 ? 3 : 4})); }, "[3]");
  expect_all_refuse([](const Group& g) { g.all_reduce(at::ones({4}, g.rank() == 2 ? at::kDouble : at::kFloat)); },
                    "Double");
  expect_all_refuse([](const Group& g) { g.all_reduce(at::ones({4}), g.rank() ? ReduceOp::Sum : ReduceOp::Max); },
                    "max");
  expect_all_refuse([](const Group& g) { g.broadcast(at::ones({4}), g.rank() == 1); }, "broadcast from 1");
  expect_all_refuse(
      [](const Group& g) {
        if (g.rank() == 0) {
          g.barrier();
        } else {
          g.all_reduce(at::ones({4}));
        }
      },
      "barrier");
  expect_all_refuse([](const Group& g) { g.all_reduce(at::ones({4}, at::kComplexFloat)); }, "real numbers");
  const at::Tensor one = at::ones({4});
  expect_all_refuse([&](const Group& g) { g.all_reduce(one); }, "of its own");
  EXPECT_TRUE(one.equal(at::ones({4})));
}

TEST(LocalBackend, RefusesAReceiveOfAnotherShape) {
  run_ranks(2, [](Group g) {
    const at::Tensor t = at::zeros({g.rank() ? 4 : 5});
    EXPECT_THROW(g.rank() ? g.recv(t, 0) : g.send(t, 1), std::invalid_argument);
  });
}

TEST(LocalBackend, RefusesASplitThatRanksDisagreeOn) {
  EXPECT_THROW(run_ranks(
                   4,
                   [](Group g) {
                     const Group part = g.rank() == 3 ? g.split({{0, 1}, {2, 3}}) : g.split({{0, 1, 2}, {3}});
                     part.barrier();
                     g.barrier();
                   },
                   milliseconds(2000)),
               std::exception);
}

TEST(LocalBackend, SaysHowManySecondsItWaitedForWhom) {
  std::promise<void> release;
  const auto released = release.get_future().share();
  std::atomic<int> to_come{2};
  run_ranks(
      3,
      [&](Group g) {
        if (g.rank() == 1) return released.wait();
        try {
          g.all_gather(at::ones({3}));
          ADD_FAILURE() << "rank 1 never came";
        } catch (const PeerError& e) {
          EXPECT_THAT(e.what(),
                      AllOf(HasSubstr("all_gather #0"), HasSubstr("rank 1 did not arrive"), HasSubstr("0.2 s")));
        }
        if (--to_come == 0) release.set_value();
      },
      milliseconds(200));
}

TEST(LocalBackend, ALateRankDoesNotTouchWhatItsPeersHaveGivenUp) {
  std::promise<void> release;
  const at::Tensor given_up = at::ones({4});
  run_ranks(
      2,
      [&](Group g) {
        if (g.rank() == 0) {
          EXPECT_THROW(g.all_reduce(given_up), PeerError);
          release.set_value();
        } else {
          release.get_future().wait();
          EXPECT_THROW(g.all_reduce(at::ones({4})), PeerError);
        }
      },
      milliseconds(200));
  EXPECT_TRUE(given_up.equal(at::ones({4})));
}

TEST(LocalBackend, CallsForHelpWhenARankStaysAfterAFailure) {
  std::promise<void> release;
  std::string stuck;
  const LocalOptions options{.timeout = milliseconds(100), .on_stuck = [&](const std::string& message) {
                               stuck = message;
                               release.set_value();
                             }};
  EXPECT_THROW(run_ranks(
                   3,
                   [&](Group g) {
                     if (g.rank() == 0) throw std::runtime_error("broken");
                     if (g.rank() == 1) release.get_future().wait();
                   },
                   options),
               std::runtime_error);
  EXPECT_THAT(stuck, AllOf(HasSubstr("rank 1"), HasSubstr("broken")));
}

TEST(LocalBackend, ALoneWaiterFinishesAnAllReduceThatAllHavePosted) {
  std::promise<void> done;
  run_ranks(2, [&](Group g) {
    const at::Tensor t = at::full({100000}, g.rank() + 1.0);
    const WorkHandle handle = g.all_reduce_async(t);
    if (g.rank() == 0) {
      handle->wait();
      EXPECT_EQ(t[99999].item<float>(), 3);
      done.set_value();
    } else {
      done.get_future().wait();  // computes meanwhile, and does nothing for the all-reduce
      handle->wait();
      EXPECT_EQ(t[99999].item<float>(), 3);
    }
  });
}

TEST(LocalBackend, BucketsThatAllHavePostedAreReducedAtLaterPostsBeforeAnybodyWaits) {
  constexpr std::size_t kBuckets = 5;
  std::barrier step(2);
  run_ranks(2, [&](Group g) {
    std::vector<at::Tensor> buckets;
    std::vector<WorkHandle> handles;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      buckets.push_back(at::full({300001}, g.rank() + 1.0));
      handles.push_back(g.all_reduce_async(buckets.back()));
      step.arrive_and_wait();  // now both have posted it
    }
    const at::Tensor sum = at::full({300001}, 3.0);
    for (std::size_t i = 0; i + 1 < kBuckets; ++i) EXPECT_TRUE(buckets[i].equal(sum)) << "bucket " << i;
    step.arrive_and_wait();
    for (const WorkHandle& handle : handles) handle->wait();
    EXPECT_TRUE(buckets.back().equal(sum));
  });
}

TEST(LocalBackend, WhoeverWaitsForAPeerReducesWhatAllHavePosted) {
  LocalWorld world(2, milliseconds(20));
  const auto room = world.room(0, 0, {0, 1});
  std::vector<at::Tensor> tensors;
  std::shared_ptr<LocalOp> op;
  for (const int rank : {0, 1}) {
    tensors.push_back(at::full({300001}, rank + 1.0));
    op = room->post(rank, 0, {OpKind::AllReduce, ReduceOp::Sum, 0, tensors.back(), tensors.back()});
  }
  ASSERT_FALSE(op->done()) << "the last to post has done its share alone";
  const auto other = room->post(0, 1, {});  // a barrier that rank 1 does not come to
  EXPECT_THROW(room->finish(*other, {0, 1}, 0), PeerError);
  EXPECT_TRUE(op->done());
  EXPECT_EQ(tensors[0][300000].item<float>(), 3);
}

TEST(LocalBackend, ARankThatThrowsDoesNotWaitForWhatItHasPosted) {
  std::vector<std::string> said(3);
  EXPECT_THAT(
      [&] {
        run_ranks(
            3,
            [&](const Group& g) {
              const at::Tensor t = at::ones({1000});
              if (g.rank() == 2) {
                const WorkHandle never = g.recv_async(t, 0, 9);
                throw std::domain_error("out of luck");
              }
              try {
                g.all_reduce(t);
              } catch (const PeerError& e) {
                said[static_cast<std::size_t>(g.rank())] = e.what();
              }
            },
            milliseconds(5000));
      },
      testing::ThrowsMessage<std::domain_error>("out of luck"));
  for (const std::size_t r : {0, 1})  // had it waited, they would say that it did not arrive in time
    EXPECT_THAT(said[r], AllOf(HasSubstr("rank 2 failed"), HasSubstr("out of luck")));
}

TEST(LocalBackend, WhatAllHavePostedCompletesThoughARankThrows) {
  std::barrier posted(2);
  EXPECT_THROW(run_ranks(2,
                         [&](const Group& g) {
                           const at::Tensor t = at::full({100000}, g.rank() + 1.0);
                           const WorkHandle handle = g.all_reduce_async(t);
                           posted.arrive_and_wait();
                           if (g.rank() == 1) throw std::domain_error("out of luck");
                           handle->wait();
                           EXPECT_EQ(t[99999].item<float>(), 3);
                         }),
               std::domain_error);
}

TEST(LocalBackend, ARankThatHasWaitedHoldsItsTensorAlone) {
  std::promise<void> done;
  run_ranks(2, [&](Group g) {
    at::Tensor t = at::ones({1000});
    const WorkHandle handle = g.all_reduce_async(t);
    if (g.rank() == 1) return done.get_future().wait();  // has not waited yet
    handle->wait();
    EXPECT_EQ(t.use_count(), 1) << "else its memory stays taken until the slowest rank has waited";
    done.set_value();
  });
}

TEST(LocalBackend, SurvivesManyCollectivesOfManyGroupsOnFewCores) {
  run_ranks(8, [](Group g) {
    const Group pair = g.split({{0, 1}, {2, 3}, {4, 5}, {6, 7}}), odd = g.split({{0, 2, 4, 6}, {1, 3, 5, 7}});
    const at::Tensor a = at::ones({300}), b = at::ones({70000}), c = at::ones({1});
    for (int i = 0; i < 200; ++i) {
      a.fill_(1), b.fill_(1), c.fill_(1);
      const WorkHandle x = g.all_reduce_async(a), y = pair.all_reduce_async(b);
      odd.all_reduce(c);
      (g.rank() % 2 ? x : y)->wait();
      (g.rank() % 2 ? y : x)->wait();
      ASSERT_EQ(a[299].item<float>(), 8);
      ASSERT_EQ(b[69999].item<float>(), 2);
      ASSERT_EQ(c[0].item<float>(), 4);
    }
  });
}

TEST(Group, OfOneDoesNothingAndAsksForNothing) {
  const Group one;
  const at::Tensor t = at::arange(6).view({2, 3});
  one.all_reduce(t);
  one.broadcast(t, 0);
  one.barrier();
  EXPECT_TRUE(one.all_gather(t, 1).equal(t));
  EXPECT_TRUE(one.reduce_scatter(t).equal(t));
  EXPECT_TRUE(one.all_to_all(t).equal(t));
  EXPECT_EQ(one.split({{0}}).size(), 1);
  EXPECT_EQ(one.all_reduce_scalars({1.5}), std::vector<double>{1.5});
}

TEST(Group, RefusesWhatNoTransportCanDo) {
  run_ranks(2, [](Group g) {
    EXPECT_THROW(g.all_reduce(at::ones({2, 3}).t()), std::invalid_argument) << "not contiguous";
    EXPECT_THROW(g.reduce_scatter(at::ones({3})), std::invalid_argument);
    EXPECT_THROW(g.all_to_all(at::ones({3})), std::invalid_argument);
    EXPECT_THROW(g.all_gather(at::ones({3}), 2), std::invalid_argument);
    EXPECT_THROW(g.all_gather_async(at::ones({3}), at::ones({2})), std::invalid_argument);
    EXPECT_THROW(g.broadcast(at::ones({3}), 2), std::invalid_argument);
    EXPECT_THROW(g.send(at::ones({3}), g.rank()), std::invalid_argument);
    EXPECT_THROW(g.split({{0}}), std::invalid_argument);
    EXPECT_THROW(g.split({{0, 1}, {1}}), std::invalid_argument);
    EXPECT_THROW(g.split({{1, 0}}), std::invalid_argument);
  });
}

TEST(CountingBackend, CountsCallsAndBytesOfEachGroup) {
  run_ranks(2, [](Group inner) {
    const Group g = CountingBackend::wrap(inner), part = g.split({{0, 1}});
    g.all_reduce(at::ones({10}));
    g.all_reduce_async(at::ones({5}, at::kDouble))->wait();
    part.all_gather(at::ones({3}));
    EXPECT_EQ(CountingBackend::of(g).count("all_reduce").calls, 2);
    EXPECT_EQ(CountingBackend::of(g).count("all_reduce").bytes, 80);
    EXPECT_EQ(CountingBackend::of(g).count("all_gather").calls, 0);
    EXPECT_EQ(CountingBackend::of(part).count("all_gather").bytes, 12);
    EXPECT_EQ(g.backend()->name(), "counting(local)");
  });
}

}  // namespace
}  // namespace megatron::comm
