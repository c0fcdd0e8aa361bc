#include "megatron/schedule/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/schedule/validate.h"
#include "tests/schedule/shapes.h"

namespace megatron::schedule {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string line(const std::vector<Op>& ops) {
  std::string text;
  for (const Op& op : ops) text += (text.empty() ? "" : " ") + to_string(op);
  return text;
}

TEST(Interleaved, IsMegatronsTableFor2RanksOf2ChunksAnd4Microbatches) {
  const Program program = generate("interleaved", {.num_ranks = 2, .num_chunks = 2, .num_microbatches = 4});
  EXPECT_EQ(line(program.ranks[0]), "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3");
  EXPECT_EQ(line(program.ranks[1]), "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3");
}

/// Megatron-LM's forward_backward_pipelining_with_interleaving, as its chunk and microbatch formulas say.
std::string megatrons_interleaved(int p, int v, int m, int rank) {
  std::string text;
  const auto name = [&](bool forward, int k) {
    int chunk = k % (p * v) / p;
    if (!forward) chunk = v - 1 - chunk;
    const int microbatch = k / (p * v) * p + k % p;
    text += (text.empty() ? "" : " ") +
            to_string(Op{forward ? Kind::Forward : Kind::Backward, chunk * p + rank, microbatch});
  };
  const int total = m * v, warm_up = std::min((p - rank - 1) * 2 + (v - 1) * p, total);
  for (int k = 0; k < warm_up; ++k) name(true, k);
  for (int k = 0; k < total - warm_up; ++k) name(true, k + warm_up), name(false, k);
  for (int k = total - warm_up; k < total; ++k) name(false, k);
  return text;
}

TEST(Interleaved, IsMegatronsOrderWhereMegatronRuns) {
  for (int p = 2; p <= 8; ++p)
    for (int v = 2; v <= 4; ++v)
      for (const int groups : {1, 2, 3, 7}) {
        const Program program =
            generate("interleaved", {.num_ranks = p, .num_chunks = v, .num_microbatches = groups * p});
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(line(program.ranks[rank]), megatrons_interleaved(p, v, groups * p, rank));
      }
}

TEST(Interleaved, TakesLargerGroupsWhichKeepMoreAlive) {
  const Shape shape{.num_ranks = 2, .num_chunks = 2, .num_microbatches = 6, .microbatch_group = 3};
  EXPECT_EQ(line(generate("interleaved", shape).ranks[0]),
            "F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 F0.3 B2.1 F0.4 B2.2 F0.5 B0.0 F2.3 B0.1 F2.4 B0.2 F2.5 "
            "B2.3 B2.4 B2.5 B0.3 B0.4 B0.5")
      << "warm-up 2 + 3, then one forward, one backward";
}

TEST(Table, FindsEachRowByItsName) {
  for (const ScheduleInfo& info : schedules()) {
    EXPECT_EQ(&schedule_named(info.name), &info);
    EXPECT_TRUE(is_name(info.name));
  }
  EXPECT_TRUE(is_name("auto"));
  EXPECT_FALSE(is_name("1F1B"));
  EXPECT_THAT([] { schedule_named("1F1B"); }, ThrowsMessage<ConfigError>(HasSubstr("auto, gpipe, 1f1b")));
  EXPECT_THAT([] { schedule_named("ZB_V"); }, ThrowsMessage<ConfigError>(HasSubstr("--schedule zb-v")));
}

TEST(Table, HasOneDefaultForEachNumberOfStages) {
  for (int chunks = 1; chunks <= 16; ++chunks) {
    EXPECT_EQ(
        std::ranges::count_if(schedules(), [&](const auto& info) { return info.is_default && info.takes(chunks); }), 1)
        << chunks;
    EXPECT_TRUE(default_schedule(chunks).takes(chunks));
  }
}

TEST(Table, SaysOfEachScheduleWhatItsProgramsDo) {
  for (const ScheduleInfo& info : schedules())
    for (const int p : {2, 3, 4, 8})
      for (const int m : {1, 2, 4, 7, 16, 33}) {
        const Shape shape{.num_ranks = p, .num_chunks = info.min_chunks, .num_microbatches = m};
        SCOPED_TRACE(testing::Message() << info.name << " p " << p << " m " << m);
        if (m < info.min_microbatches(p)) {
          EXPECT_THAT([&] { generate(info, shape); }, ThrowsMessage<ConfigError>(HasSubstr("fix:  --schedule ")));
          continue;
        }
        const Program program = generate(info, shape);
        validate(program);
        bool splits = false;
        for (const auto& ops : program.ranks)
          splits = splits || std::ranges::any_of(ops, [](const Op& op) { return op.kind == Kind::BackwardInput; });
        EXPECT_EQ(info.splits_backward, splits);
        EXPECT_EQ(info.v_shaped, program.placement == Placement::v_shaped(p));
        Shape larger = shape;
        larger.microbatch_group = p + 1;
        EXPECT_TRUE(info.takes_groups || generate(info, larger) == program);
      }
}

TEST(Generate, OneRankAccumulates) {
  const Shape shape{.num_microbatches = 3};
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "auto"}) EXPECT_EQ(generate(name, shape), accumulate(shape));
}

TEST(Generate, RefusesShapesThatDoNotSuit) {
  EXPECT_THAT([] { generate("1f1b", {.num_ranks = 2, .num_chunks = 2}); },
              ThrowsMessage<ConfigError>(HasSubstr("--vpp 1")));
  EXPECT_THAT([] { generate("zb-v", {.num_ranks = 2}); }, ThrowsMessage<ConfigError>(HasSubstr("--vpp 2")));
  EXPECT_THAT([] { generate("interleaved", {.num_ranks = 2}); },
              ThrowsMessage<ConfigError>(HasSubstr("at least 2 stages")));
  EXPECT_THAT(
      [] { generate("interleaved", {.num_ranks = 4, .num_chunks = 2, .num_microbatches = 8, .microbatch_group = 3}); },
      ThrowsMessage<ConfigError>(HasSubstr("--parallel.microbatch_group_size 4")));
  EXPECT_THROW(accumulate({.num_ranks = 2}), ConfigError);
  EXPECT_THROW(generate("1f1b", {.num_ranks = 2, .num_microbatches = 0}), ConfigError);
  EXPECT_THROW(generate("1f1b", {.num_ranks = 5000}), ConfigError);
  EXPECT_THROW(generate("interleaved", {.num_ranks = 4096, .num_chunks = 2'000'000'000}), ConfigError);
  EXPECT_THROW(generate("gpipe", {.num_ranks = 4096, .num_microbatches = 1'000'000}), ConfigError);
}

TEST(Choose, TakesTheFastestThatFits) {
  const Shape shape{.num_ranks = 4, .num_microbatches = 8};
  Costs costs;
  costs.weight_bytes.assign(4, 1);  // all is kept until the gradient of the weights
  EXPECT_EQ(choose(shape, costs, 0).name, "zb-h1");
  EXPECT_EQ(choose(shape, costs, 4).name, "zb-h1");
  EXPECT_EQ(choose(shape, costs, 4).timeline.makespan, 27);
  EXPECT_THAT([&] { choose(shape, costs, 3); }, ThrowsMessage<ConfigError>(HasSubstr("1f1b 4, zb-h1 4, gpipe 8")));
  costs.activation_bytes = {1, 1, 1, 2};  // the last rank has room for one microbatch alone: 1F1B's
  costs.weight_bytes = costs.activation_bytes;
  EXPECT_EQ(choose(shape, costs, 4).name, "1f1b");
}

TEST(Choose, PrefersTheVWithTwoChunksUntilItsStagesAreUnequal) {
  const Shape shape{.num_ranks = 4, .num_chunks = 2, .num_microbatches = 16};
  EXPECT_EQ(choose(shape, {}, 0).name, "zb-v");
  const Choice with_three = choose({.num_ranks = 4, .num_chunks = 3, .num_microbatches = 16}, {}, 0);
  EXPECT_EQ(with_three.name, "interleaved");
  EXPECT_EQ(with_three.program, generate("interleaved", {.num_ranks = 4, .num_chunks = 3, .num_microbatches = 16}));
}

}  // namespace
}  // namespace megatron::schedule
