#include "megatron/plan/steps/launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

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

// A GPT 1.3B, bf16, one microbatch of 4 x 2048 tokens; 3 GB would be the least. The activation computed again takes
// 0.27 GB of what is beyond it, norms computed again 0.13 GB, which save memory.
TEST(LayerLaunches, AreAsFewAsTheFusedKernelsAllow) {
  const LaunchPlan plan = layer_launches(run_of(1, 1));
  double bytes = 0;
  for (const Launch& launch : plan.launches) bytes += launch.bytes;
  EXPECT_LE(plan.launches.size(), 21U);
  EXPECT_NEAR(bytes, 3.74e9, 0.02e9);
  EXPECT_TRUE(std::ranges::all_of(plan.launches, [](const Launch& launch) { return launch.stream == 0; }));
}

// A step's first microbatch writes gradients that the others add to: the average of many reads each once more.
TEST(LayerLaunches, ReadGradientsFromTheSecondMicrobatchOn) {
  ResolvedRun run = run_of(1, 1);
  const double weights = 12.0 * 2048 * 2048;
  const auto bytes = [&](std::int64_t microbatches) {
    run.microbatches_per_step = microbatches;
    double sum = 0;
    for (const Launch& launch : layer_launches(run).launches) sum += launch.bytes;
    return sum;
  };
  EXPECT_NEAR(bytes(4) - bytes(1), 4 * weights * 3 / 4, 1);
}

TEST(LayerLaunches, KeepWhatIsNotComputedAgain) {
  ResolvedRun run = run_of(1, 1);
  const auto again = [&] {
    return std::ranges::count_if(layer_launches(run).launches, [](const Launch& launch) {
      return launch.name.find("activation") != std::string::npos && launch.name.find("again") != std::string::npos;
    });
  };
  EXPECT_EQ(again(), 1);
  run.config.train.recompute_gelu = false;
  EXPECT_EQ(again(), 0);
}

double bytes_named(const LaunchPlan& plan, const std::string& name) {
  double bytes = 0;
  for (const Launch& launch : plan.launches)
    if (launch.name == name) bytes += launch.bytes;
  return bytes;
}

// Copies of tokens cross between ranks once each way forward, and once for each of their gradients and once more for
// the weights' backward; nobody waits for them before the shared expert has computed.
TEST(LayerLaunches, OfExpertsExchangeOnAStreamOfTheirOwn) {
  ResolvedRun run = run_of(4, 1);
  run.config.parallel.ep = 4;
  run.shape.experts = Experts{.expert = {.width = 1024, .gated = true}, .count = 8, .top_k = 2, .shared_width = 512};
  const LaunchPlan plan = layer_launches(run);
  const double rows = 2.0 * 4 * 2048 * 2048 * 2;  // copies of a token, tokens, features, bytes
  for (const auto& [name, times] :
       {std::pair{"exchange of rows", 2}, {"exchange of z", 1}, {"exchange of dz", 1}, {"exchange of drows", 1}})
    EXPECT_EQ(bytes_named(plan, name), times * 2 * rows) << name;
  EXPECT_EQ(bytes_named(plan, "experts' fc2 product"), rows * (1 + 1024.0 / 2048) + 2.0 * 1024 * 2048 * 2)
      << "two experts are here";
  const double sums_of_all = 8.0 * 2048 * (3 * 2048 + 2048 + 3 * 512 + 8), sums_of_an_expert = 8.0 * 2048 * 3 * 1024;
  EXPECT_EQ(bytes_named(plan, "sum of the gradients"), sums_of_all) << "no other rank has these experts";
  run.config.parallel.ep = 2;
  EXPECT_EQ(bytes_named(layer_launches(run), "sum of the gradients"), sums_of_all + 4 * sums_of_an_expert);
  const auto place = [&](const std::string& name) {
    return std::ranges::find(plan.launches, name, &Launch::name) - plan.launches.begin();
  };
  EXPECT_LT(place("exchange of rows"), place("shared fc1 product"));
  EXPECT_LT(place("shared fc1 product"), place("rows by expert"));
  EXPECT_LT(place("exchange of z"), place("shared fc2 product"));
  EXPECT_LT(place("shared fc2 product"), place("sum of the copies"));
  run.config.parallel.ep = 1;
  EXPECT_TRUE(
      std::ranges::none_of(layer_launches(run).launches, [](const Launch& launch) { return launch.stream == 3; }));
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
    EXPECT_EQ(plan.launches[i + 2].name, "fc1 weight, bias gradient") << "which runs meanwhile";
    EXPECT_TRUE(plan.launches[i + 1].after.empty() && plan.launches[i + 2].after.empty());
    EXPECT_THAT(plan.launches[i + 3].after, testing::ElementsAre(static_cast<int>(i)));
  }
  EXPECT_THAT(launch_text(plan), HasSubstr("operators a layer"));
}

// Each of a layer's four products forward reads x and w once as bf16 and writes them in 8 bits; the data gradient's
// pass over dy writes both copies of it, the weight gradient's turns x. A tensor's own scale takes one pass more over x
// and dy, and over weights in a step's first microbatch.
TEST(LayerLaunches, In8BitsReadEachOperandOnce) {
  ResolvedRun run = run_of(1, 1);
  run.config.fp8.format = "hybrid";
  ASSERT_TRUE(multiplies_in_8_bits(run));
  const double tokens = 4 * 2048, h = 2048, weights = 12 * h * h;
  const auto bytes = [](const LaunchPlan& plan, const std::string& call) {
    double sum = 0;
    for (const Launch& launch : plan.launches) sum += launch.call == call ? launch.bytes : 0;
    return sum;
  };
  const double x = tokens * (h + h + h + 4 * h), dy = tokens * (3 * h + h + 4 * h + h);
  const LaunchPlan delayed = layer_launches(run);
  EXPECT_EQ(bytes(delayed, "fp8_numbers"), 2 * x * 3 + dy * 4 + 2 * weights * 3);
  EXPECT_EQ(bytes(delayed, "fp8_magnitude"), 0);
  run.config.fp8.recipe = "tensorwise";
  run.microbatches_per_step = 4;
  EXPECT_EQ(bytes(layer_launches(run), "fp8_magnitude"), 2 * (x + dy + weights / 4));
  run.config.fp8.recipe = "mxfp8";
  EXPECT_EQ(bytes(layer_launches(run), "fp8_matrices"), (2 * x + 2 * weights) * (3 + 1.0 / 32) + dy * (4 + 2.0 / 32));
  run.config.fp8.wgrad = false;
  EXPECT_EQ(bytes(layer_launches(run), "fp8_matrices"), (x + 2 * weights + dy) * (3 + 1.0 / 32));
  run.config.fp8.recipe = "blockwise";
  run.config.data.seq_length = 2000;
  EXPECT_TRUE(multiplies_in_8_bits(run)) << "no product sums over tokens";
  run.config.fp8.wgrad = true;
  EXPECT_FALSE(multiplies_in_8_bits(run));
  run.config.fp8.format = "none";
  EXPECT_FALSE(multiplies_in_8_bits(run));
}

// What all-reduces moved is moved by reduce-scatters and all-gathers, and once more for the two inputs that are
// gathered again for the weights' gradients; norms and sums are those of half of the tokens.
TEST(LayerLaunches, OfASequenceInPartsGatherWhatLayersRead) {
  ResolvedRun run = run_of(4, 2);
  const LaunchPlan whole = layer_launches(run);
  run.config.parallel.sp = true;
  const LaunchPlan parts = layer_launches(run);
  const auto of_messages = [](const LaunchPlan& plan) {
    double bytes = 0;
    for (const Launch& launch : plan.launches) bytes += launch.stream == 1 ? launch.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(of_messages(parts), 10.0 / 8 * of_messages(whole));
  for (const char* name : {"bias + dropout + residual + norm", "norm, again", "norm, dropout, bias, backward"})
    EXPECT_EQ(bytes_named(parts, name), bytes_named(whole, name) / 2) << name;
  const auto place = [&](const std::string& name) {
    return std::ranges::find(parts.launches, name, &Launch::name) - parts.launches.begin();
  };
  const auto product = place("fc1, input product"), weight = place("fc1 weight, bias gradient");
  EXPECT_EQ(parts.launches[static_cast<std::size_t>(product) - 1].name, "gathering of y2")
      << "which is under way meanwhile";
  EXPECT_TRUE(parts.launches[static_cast<std::size_t>(product)].after.empty());
  EXPECT_THAT(parts.launches[static_cast<std::size_t>(weight)].after,
              testing::ElementsAre(static_cast<int>(product) - 1));
}

}  // namespace
}  // namespace megatron::plan
