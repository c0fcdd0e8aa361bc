#include "megatron/schedule/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "megatron/base/error.h"
#include "megatron/schedule/validate.h"
#include "tests/schedule/shapes.h"

namespace megatron::schedule {
namespace {

std::string line(const std::vector<Op>& ops) {
  std::string text;
  for (const Op& op : ops) text += (text.empty() ? "" : " ") + to_string(op);
  return text;
}

std::vector<Named> samples() {
  std::vector<Named> all;
  for (const Shape& shape : {Shape{4, 1, 7}, Shape{4, 2, 9}, Shape{3, 3, 6}, Shape{2, 2, 1}, Shape{8, 2, 20}})
    for (Named& named : all_programs(shape)) all.push_back(std::move(named));
  return all;
}

TEST(InsertCommunication, NamesRoundTrip) {
  EXPECT_EQ(communication_of("unbatched"), Communication::Unbatched);
  EXPECT_EQ(communication_of("batched"), Communication::Batched);
  EXPECT_EQ(communication_of("overlapped"), Communication::Overlapped);
  EXPECT_THROW(communication_of("async"), ConfigError);
}

TEST(InsertCommunication, UnbatchedSendsAndReceivesEachAlone) {
  const Program program =
      insert_communication(generate("1f1b", {.num_ranks = 2, .num_microbatches = 2}), Communication::Unbatched);
  EXPECT_EQ(line(program.ranks[0]), "F0.0 SA0.0 wSA0.0 F0.1 SA0.1 wSA0.1 RG0.0 wRG0.0 B0.0 RG0.1 wRG0.1 B0.1");
  EXPECT_EQ(line(program.ranks[1]), "RA1.0 wRA1.0 F1.0 RA1.1 wRA1.1 B1.0 SG1.0 wSG1.0 F1.1 B1.1 SG1.1 wSG1.1");
}

TEST(InsertCommunication, BatchedJoinsASendWithTheReceiveThatGoesWithIt) {
  const Program program =
      insert_communication(generate("1f1b", {.num_ranks = 3, .num_microbatches = 4}), Communication::Batched);
  const std::string middle = line(program.ranks[1]);
  // Article 003: send_forward_recv_backward after a forward, send_backward_recv_forward after a backward.
  EXPECT_THAT(middle, testing::HasSubstr("F1.3 RG1.2 SA1.3 wRG1.2 wSA1.3 B1.2 "));
  EXPECT_THAT(middle, testing::HasSubstr("B1.1 SG1.1 RA1.3 wSG1.1 wRA1.3 F1.3 "));
}

// What article 003's p2p functions and --use-ring-exchange-p2p have in one call: whatever a rank sends and receives
// between two computations is posted before it waits for any of it, to both neighbours and from both.
TEST(InsertCommunication, BatchedIsOneExchangeBetweenTwoComputations) {
  for (const Named& named : samples())
    for (const std::vector<Op>& ops : insert_communication(named.program, Communication::Batched).ranks) {
      bool waits = false;
      for (const Op& op : ops) {
        EXPECT_FALSE(waits && is_post(op.kind)) << named.name << ": " << line(ops);
        waits = is_wait(op.kind) || (waits && !is_computation(op.kind));
      }
    }
  const Program program = insert_communication(
      generate("interleaved", {.num_ranks = 4, .num_chunks = 2, .num_microbatches = 16}), Communication::Batched);
  for (const std::vector<Op>& ops : program.ranks) {
    int both_ways = 0;
    std::set<Kind> posts;
    for (const Op& op : ops) {
      if (is_post(op.kind)) posts.insert(op.kind);
      if (!is_computation(op.kind)) continue;
      both_ways += (posts.contains(Kind::SendActivation) || posts.contains(Kind::SendGradient)) &&
                   (posts.contains(Kind::RecvActivation) || posts.contains(Kind::RecvGradient));
      posts.clear();
    }
    EXPECT_GE(both_ways, 16) << line(ops);
  }
}

TEST(InsertCommunication, OverlappedPostsReceivesEarlyAndWaitsForSendsLate) {
  const Program program =
      insert_communication(generate("1f1b", {.num_ranks = 2, .num_microbatches = 3}), Communication::Overlapped);
  EXPECT_EQ(line(program.ranks[0]),
            "F0.0 SA0.0 RG0.0 F0.1 SA0.1 wRG0.0 B0.0 wSA0.0 RG0.1 F0.2 wSA0.1 SA0.2 RG0.2 wRG0.1 B0.1 wRG0.2 B0.2 "
            "wSA0.2");
}

TEST(InsertCommunication, LeavesTheComputationsAsTheyAre) {
  for (const Named& named : samples())
    for (const Communication how : kCommunications) {
      Program program = insert_communication(named.program, how);
      for (std::vector<Op>& ops : program.ranks)
        std::erase_if(ops, [](const Op& op) { return is_communication(op.kind); });
      EXPECT_EQ(program, named.program) << named.name;
    }
}

TEST(InsertCommunication, KeepsAtMostTwoSendsOfARankUnderWay) {
  for (const Named& named : samples())
    for (const std::vector<Op>& ops : insert_communication(named.program, Communication::Overlapped).ranks) {
      int under_way = 0;
      for (const Op& op : ops) {
        if (op.kind == Kind::SendActivation || op.kind == Kind::SendGradient) ++under_way;
        if (op.kind == Kind::WaitSendActivation || op.kind == Kind::WaitSendGradient) --under_way;
        EXPECT_LE(under_way, 2) << named.name << " " << to_string(op);
      }
    }
}

TEST(InsertCommunication, OverlappedPostsEveryReceiveBeforeTheComputationAheadOfTheOneThatNeedsIt) {
  for (const Named& named : samples())
    for (const std::vector<Op>& ops : insert_communication(named.program, Communication::Overlapped).ranks) {
      std::map<Op, int> posted;  // computations done when it was posted
      int done = 0;
      for (const Op& op : ops) {
        if (is_computation(op.kind)) ++done;
        if (op.kind == Kind::RecvActivation || op.kind == Kind::RecvGradient) posted[op] = done;
        if (op.kind == Kind::WaitRecvActivation || op.kind == Kind::WaitRecvGradient) {
          EXPECT_LE(posted.at({post_of(op.kind), op.stage, op.microbatch}), std::max(done - 1, 0)) << named.name;
        }
      }
    }
}

TEST(InsertCommunication, BlockingMessagesCostNothingWhereTheyTakeNoTimeOnTheseSchedules) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : {1, p - 1, p, 2 * p + 1, 4 * p}) {
      const Shape shape{.num_ranks = p, .num_microbatches = m};
      const Shape two{.num_ranks = p, .num_chunks = 2, .num_microbatches = m};
      for (const Program& program :
           {generate("gpipe", shape), generate("1f1b", shape), generate("zb-h1", shape), generate("zb-v", two)})
        for (const Communication how : kCommunications)
          EXPECT_DOUBLE_EQ(simulate(insert_communication(program, how)).makespan, simulate(program).makespan);
    }
}

TEST(InsertCommunication, KeepsTheLawOfInterleavingWhereRanksStandStillForMessages) {
  for (int p = 2; p <= 16; ++p)
    for (int v = 2; v <= 4; ++v)
      for (int m = p; m <= 4 * p; m += m < 2 * p || m > 4 * p - 3 ? 1 : 3) {
        const Program program = generate("interleaved", {.num_ranks = p, .num_chunks = v, .num_microbatches = m});
        for (const Communication how : {Communication::Unbatched, Communication::Batched}) {
          const double beyond = simulate(insert_communication(program, how)).makespan - 3.0 * v * m;
          EXPECT_DOUBLE_EQ(beyond, 3 * (p - 1)) << p << " " << v << " " << m;
        }
      }
}

TEST(InsertCommunication, BlockingMessagesCostNothingInGroupsOfAnySizeAndWithFewMicrobatches) {
  for (const int p : {2, 3, 5, 7, 8, 14})
    for (const int v : {2, 3})
      for (const int m : {1, 2, p - 1, 2 * p + 3, 4 * p + 2})
        for (const int group : {p, p + 1, p + 3, 2 * p}) {
          const Shape shape{.num_ranks = p, .num_chunks = v, .num_microbatches = m, .microbatch_group = group};
          const Program program = generate("interleaved", shape);
          for (const Communication how : kCommunications)
            EXPECT_DOUBLE_EQ(simulate(insert_communication(program, how)).makespan, simulate(program).makespan)
                << p << " " << v << " " << m << " " << group;
        }
}

TEST(InsertCommunication, RefusesWhatCannotBeExecuted) {
  const Program ring = parse_program("stages 0 1\nmicrobatches 1\nrank 0: B0.0 F0.0\nrank 1: F1.0 B1.0\n", "x");
  EXPECT_THROW(insert_communication(ring, Communication::Batched), ConfigError);
  const Program twice = insert_communication(generate("1f1b", {.num_ranks = 2}), Communication::Batched);
  EXPECT_THROW(insert_communication(twice, Communication::Batched), std::logic_error);
}

TEST(InsertGradientReduction, ComesRightAfterTheLastBackwardOfAStage) {
  for (const Named& named : samples()) {
    if (named.program.forward_only) continue;
    for (const bool before : {false, true}) {  // before communication or after it
      Program program = before
                            ? insert_communication(insert_gradient_reduction(named.program), Communication::Overlapped)
                            : insert_gradient_reduction(insert_communication(named.program, Communication::Overlapped));
      int reductions = 0;
      for (const std::vector<Op>& ops : program.ranks)
        for (std::size_t i = 0; i < ops.size(); ++i) {
          if (ops[i].kind != Kind::ReduceGradients) continue;
          ++reductions;
          const auto is_last_of_stage = [&](const Op& op) {
            return op.stage == ops[i].stage && (op.kind == Kind::Backward || op.kind == Kind::BackwardWeight);
          };
          EXPECT_TRUE(is_last_of_stage(ops[i - 1])) << named.name;
          EXPECT_EQ(std::count_if(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(i), is_last_of_stage),
                    program.num_microbatches);
        }
      EXPECT_EQ(reductions, program.placement.num_stages());
    }
  }
}

// Megatron-Core: microbatch i of a rank recomputes every layer where i % (warm-up + 1) is not below the number asked.
TEST(MarkPartial, MarksTheFirstOfEachWindowOfOneForwardOneBackward) {
  for (const int p : {2, 3, 4})
    for (const int m : {1, 2, 7, 12})
      for (const int most : {1, 2, 3}) {
        const Program program = mark_partial(generate("1f1b", {.num_ranks = p, .num_microbatches = m}), most);
        for (int rank = 0; rank < p; ++rank) {
          const int window = std::min(p - rank - 1, m) + 1;
          for (const Op& op : program.ranks[static_cast<std::size_t>(rank)])
            EXPECT_EQ(op.partial, op.microbatch % window < most)
                << to_string(op) << " of " << p << " ranks, " << m << " microbatches, " << most;
        }
      }
}

TEST(MarkPartial, KeepsAsManyAliveAsItIsAskedAndNoMoreInEverySchedule) {
  for (const Named& named : samples())
    for (const int most : {0, 1, 3}) {
      SCOPED_TRACE(named.name);
      const Program program = mark_partial(lower(named.program, Communication::Overlapped), most);
      validate(program);
      EXPECT_EQ(program, lower(mark_partial(named.program, most), Communication::Overlapped));
      if (most > 0 && !program.forward_only) {
        EXPECT_EQ(mark_partial(program, 2), program) << "marks stay";
      }
      for (const std::vector<Op>& ops : program.ranks) {
        std::map<std::pair<int, int>, bool> alive;
        for (const Op& op : ops) {
          const auto partial = [](const auto& each) { return each.second; };
          const auto count = std::count_if(alive.begin(), alive.end(), partial);
          if (op.kind == Kind::Forward && !program.forward_only) {
            EXPECT_EQ(op.partial, count < most) << to_string(op);
            alive[{op.stage, op.microbatch}] = op.partial;
          } else if (is_computation(op.kind) && !program.forward_only) {
            EXPECT_EQ(op.partial, (alive[{op.stage, op.microbatch}])) << to_string(op);
          } else {
            EXPECT_FALSE(op.partial) << to_string(op);
          }
          if (op.kind == Kind::Backward || op.kind == Kind::BackwardWeight) alive.erase({op.stage, op.microbatch});
        }
      }
    }
}

}  // namespace
}  // namespace megatron::schedule
