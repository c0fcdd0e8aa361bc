#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/config/megatron/arguments.h"

namespace megatron::config {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Errors name them as a fix, so whoever types them behind a script's own words must be understood.
TEST(MegatronArguments, TakeThisProgramsNamesOfTheLayout) {
  const MegatronArguments args({"--pipeline-model-parallel-size", "16", "--pp", "8", "--parallel.tp=2", "--vpp", "3",
                                "--sp", "--dp=3", "--schedule", "auto", "--world-size", "48"});
  EXPECT_THAT(args.errors(), IsEmpty());
  EXPECT_EQ(args.integer("pipeline-model-parallel-size"), 8);
  EXPECT_EQ(args.integer("tensor-model-parallel-size"), 2);
  EXPECT_EQ(args.integer("num-virtual-stages-per-pipeline-rank"), 3);
  EXPECT_TRUE(args.has("sequence-parallel"));
  EXPECT_THAT(args.own_words(),
              ElementsAre("--parallel.dp=3", "--parallel.pp_schedule", "auto", "--parallel.world_size", "48"));
  EXPECT_THAT(MegatronArguments({"--pq", "8"}).errors(), testing::SizeIs(1));
}

}  // namespace
}  // namespace megatron::config
