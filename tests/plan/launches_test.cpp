#include "megatron/plan/steps/launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Two streams: the second adds up what the first has written, the first reads the sum.
LaunchPlan message() {
  return {.streams = {"compute", "message"},
          .inputs = {"x"},
          .launches = {{"product", 0, {"x"}, {"y"}, 1, {}},
                       {"sum", 1, {"y"}, {"y"}, 1, {0}},
                       {"other work", 0, {"x"}, {"z"}, 1, {}},
                       {"norm", 0, {"y"}, {"w"}, 1, {1}}}};
}

TEST(Launches, AreValidWhereEveryDependencyAcrossStreamsHasAnEvent) { EXPECT_NO_THROW(validate(message())); }

TEST(Launches, WithoutAnEventAreRefusedByName) {
  for (const int waits : {1, 3}) {
    LaunchPlan plan = message();
    plan.launches[static_cast<std::size_t>(waits)].after.clear();
    EXPECT_THAT([&] { validate(plan); },
                ThrowsMessage<std::logic_error>(HasSubstr("use y on streams that no event orders")));
  }
}

TEST(Launches, MayNotOverwriteWhatAnotherStreamStillReads) {
  LaunchPlan plan = message();
  plan.launches[2].writes = {"y"};
  EXPECT_THAT([&] { validate(plan); }, ThrowsMessage<std::logic_error>(HasSubstr("other work (2) and sum (1)")));
}

TEST(Launches, AreOrderedThroughOtherStreams) {
  LaunchPlan plan = message();
  plan.streams.emplace_back("third");
  plan.launches.push_back({"late", 2, {"y", "z"}, {}, 1, {3}});  // after norm, and so after sum and other work
  EXPECT_NO_THROW(validate(plan));
  plan.launches.back().after = {1};
  EXPECT_THAT([&] { validate(plan); }, ThrowsMessage<std::logic_error>(HasSubstr("use z")));
}

TEST(Launches, ReadWhatIsThereAndWaitForWhatWasLaunched) {
  LaunchPlan plan = message();
  plan.inputs.clear();
  EXPECT_THAT([&] { validate(plan); },
              ThrowsMessage<std::logic_error>(HasSubstr("reads x, which nothing has written")));
  plan = message();
  plan.launches[1].after = {3};
  EXPECT_THAT([&] { validate(plan); }, ThrowsMessage<std::logic_error>(HasSubstr("launched later")));
  plan = message();
  plan.launches[0].stream = 2;
  EXPECT_THROW(validate(plan), std::logic_error);
}

ResolvedRun run_of(int world, int tp) {
  config::RunConfig config;
  config.parallel.world_size = world;
  config.parallel.tp = tp;
  config.parallel.device = "cuda";
  config.model.num_layers = 24;
  config.model.hidden_size = 2048;
  config.model.num_attention_heads = 32;
  config.data.seq_length = 2048;
  config.model.max_position_embeddings = 2048;
  config.model.vocab_size = 50257;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 4 * world;
  config.train.dtype = "bf16";
  return resolve(config);
}

// A GPT 1.3B, bf16, 4 x 2048 tokens; 3 GB would be the least. The activation computed again takes 0.27 GB of what is
// beyond it, norms computed again 0.13 GB, which save memory; biases' gradients 0.3 GB, the gains' own pass over dy and
// x and dropout's own pass backward 0.13 GB each.
TEST(LayerLaunches, AreAsFewAsTheFusedKernelsAllow) {
  const LaunchPlan plan = layer_launches(run_of(1, 1));
  double bytes = 0;
  for (const Launch& launch : plan.launches) bytes += launch.bytes;
  EXPECT_LE(plan.launches.size(), 33U);
  EXPECT_NEAR(bytes, 4.39e9, 0.05e9);
  EXPECT_TRUE(std::ranges::all_of(plan.launches, [](const Launch& launch) { return launch.stream == 0; }));
}

TEST(LayerLaunches, OverRanksSumOnStreamsOfTheirOwnBesideWeightGradients) {
  const LaunchPlan plan = layer_launches(run_of(4, 2));
  const auto of_stream = [&](int stream) {
    return std::ranges::count_if(plan.launches, [&](const Launch& launch) { return launch.stream == stream; });
  };
  EXPECT_EQ(of_stream(1), 4) << "two all-reduces each way";
  EXPECT_EQ(of_stream(2), 1);
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    if (plan.launches[i].name != "sum of dy2") continue;
    EXPECT_EQ(plan.launches[i + 2].name, "fc1 weight gradient") << "which runs meanwhile";
    EXPECT_TRUE(plan.launches[i + 1].after.empty() && plan.launches[i + 2].after.empty());
    EXPECT_THAT(plan.launches[i + 3].after, testing::ElementsAre(static_cast<int>(i)));
  }
  EXPECT_THAT(launch_text(plan), HasSubstr("operators a layer"));
}

}  // namespace
}  // namespace megatron::plan
