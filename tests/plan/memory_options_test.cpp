#include "megatron/plan/cost/fit/memory_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/plan/cost/memory_fit.h"
#include "megatron/plan/mend.h"

namespace megatron::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A recipe as a user writes it, before anything is resolved.
config::RunConfig recipe(int world_size) {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.hidden_size = 256;
  config.model.num_attention_heads = 8;
  config.model.vocab_size = 4096;
  config.data.seq_length = 512;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 16;
  config.parallel.world_size = world_size;
  return config;
}

std::int64_t of_all_ranks(const ResolvedRun& run) {
  return bytes_of_ranks(run, {.first = 0, .count = run.grid.world_size()}, Holding::Training);
}

/// What a user gets who types these words after the recipe.
ResolvedRun typed(config::RunConfig config, const std::vector<std::string>& words) {
  EXPECT_TRUE(config::parse_words(config::fields_of(config), words, "").empty());
  return resolve(config);
}

/// The words of the first option in a fix, with those of the alternatives behind it, as a reader takes them.
std::vector<std::vector<std::string>> alternatives(const std::string& fix) {
  std::vector<std::vector<std::string>> all;
  for (std::size_t at = 0; at < fix.size();) {
    const std::size_t end = fix.find(" (", at);
    if (end == std::string::npos) break;
    all.push_back(amendment_of(fix.substr(at)).words);
    at = fix.find("--", fix.find(')', end));
  }
  return all;
}

std::string fix_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const ConfigError& error) {
    return violations_in(error.what()).at(0).fix;
  }
  return "no error";
}

TEST(MemoryOptions, OfAMachineFitAsTheyAreTyped) {
  for (const int world : {1, 2, 4})
    for (const double share : {0.95, 0.8, 0.6, 0.45, 0.3}) {
      const config::RunConfig config = recipe(world);
      const ResolvedRun run = resolve(config);
      const auto bytes = static_cast<std::uint64_t>(share * static_cast<double>(of_all_ranks(run)));
      const LocalRanks ranks{.first = 0, .count = world};
      const std::string fix = fix_of([&] { check_memory(run, ranks, Holding::Training, {bytes, "free"}); });
      const auto options = alternatives(fix);
      EXPECT_LE(options.size(), 3u) << fix;
      EXPECT_TRUE(share < 0.4 || !options.empty()) << world << " " << share << ": " << fix;
      for (const auto& words : options) {
        const ResolvedRun changed = typed(config, words);
        EXPECT_LE(static_cast<std::uint64_t>(of_all_ranks(changed)), bytes) << fix;
        EXPECT_EQ(changed.config.train.global_batch_size, 16) << fix;
        EXPECT_EQ(changed.grid.world_size(), world) << fix;
      }
      EXPECT_EQ(std::set(options.begin(), options.end()).size(), options.size()) << fix;
      EXPECT_THAT(fix, HasSubstr("megatron plan shows what a rank holds"));
    }
}

TEST(MemoryOptions, OfAGpuFitOnEachAndMayNeedMoreOfThem) {
  const config::RunConfig config = recipe(1);
  const ResolvedRun run = resolve(config);
  const std::int64_t held = of_all_ranks(run);
  const auto fix = [&](double share, int gpus) {
    const auto free = static_cast<std::uint64_t>(share * static_cast<double>(held));
    return fix_of([&] { check_gpu_memory(run, 0, Holding::Training, {.free = free, .total = free, .gpus = gpus}); });
  };
  EXPECT_EQ(fix(1.0, 1), "no error");
  int tried = 0;
  for (const double share : {0.9, 0.7, 0.5})
    for (const int gpus : {0, 1, 4})
      for (const auto& words : alternatives(fix(share, gpus))) {
        const ResolvedRun changed = typed(config, words);
        EXPECT_LE(changed.grid.world_size(), std::max(1, gpus));
        EXPECT_LE(static_cast<double>(largest_memory(changed).total()), share * static_cast<double>(held));
        ++tried;
      }
  EXPECT_GE(tried, 9);
  EXPECT_THAT(fix(0.9, 4), HasSubstr("--world-size"));
  EXPECT_THAT(fix(0.9, 1), Not(HasSubstr("--world-size")));
}

TEST(MemoryOptions, AGpuIsRefusedByOneByteAndForItsOwnRank) {
  config::RunConfig config = recipe(2);
  config.parallel.pp = 2;
  const ResolvedRun run = resolve(config);
  const std::int64_t first = memory_of_rank(run, 0).total(), second = memory_of_rank(run, 1).total();
  ASSERT_NE(first, second);
  for (const int rank : {0, 1}) {
    const auto held = static_cast<std::uint64_t>(rank == 0 ? first : second);
    EXPECT_NO_THROW(check_gpu_memory(run, rank, Holding::Training, {.free = held, .total = held}));
    EXPECT_THROW(check_gpu_memory(run, rank, Holding::Training, {.free = held - 1, .total = held - 1}), ConfigError);
    // What others hold now may be free when a supervisor tries again: not the command's fault.
    try {
      check_gpu_memory(run, rank, Holding::Training, {.free = held - 1, .total = held});
      ADD_FAILURE() << rank;
    } catch (const ConfigError& error) {
      ADD_FAILURE() << error.what();  // which is a runtime_error too
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("A GPU's memory must hold"));
    }
    EXPECT_NO_THROW(check_gpu_memory(run, rank, Holding::Weights, {.free = held - 1, .total = held}));
  }
  try {
    check_gpu_memory(run, 0, Holding::Training, {.free = 1'000'000, .total = 85'000'000'000});
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("A GPU's memory must hold parameters, gradients, optimizer state and"),
                                    HasSubstr(", and free are 1.00 MB of 85.0 GB"), HasSubstr("--num-layers")));
  }
}

TEST(MemoryOptions, CountWhatAJobHoldsBesidesAndSayItsOwnFix) {
  const ResolvedRun run = resolve(recipe(1));
  const auto weights = static_cast<std::uint64_t>(bytes_of_ranks(run, {}, Holding::Weights));
  const GpuMemory gpu{.free = weights + 99, .total = weights + 99};
  const Besides besides{.bytes = 100, .what = "keys and values", .fix = "fewer texts"};
  EXPECT_EQ(fix_of([&] { check_gpu_memory(run, 0, Holding::Weights, gpu); }), "no error");
  EXPECT_EQ(fix_of([&] { check_gpu_memory(run, 0, Holding::Weights, gpu, besides); }), "fewer texts");
  EXPECT_THAT(fix_of([&] { check_gpu_memory(run, 0, Holding::Weights, {.free = weights - 1}, besides); }),
              HasSubstr("--dtype bf16"));
}

TEST(MemoryOptions, KeepABatchThatNobodyHasNamed) {
  config::RunConfig config = recipe(1);
  config.train.global_batch_size = 0;
  const ResolvedRun run = resolve(config);
  const auto room = static_cast<std::uint64_t>(of_all_ranks(run) - 1);
  const auto options = options_that_fit(run, {.held = of_all_ranks, .bytes = room});
  ASSERT_FALSE(options.empty());
  EXPECT_EQ(options[0].words, "--micro-batch-size 2 --global-batch-size 4");
}

TEST(MemoryOptions, ShareStateOverRanksThatReadOtherSamples) {
  const ResolvedRun run = resolve(recipe(4));
  const auto words = [&](std::uint64_t room) {
    std::string all;
    for (const FittingOptions& each : options_that_fit(run, {.held = of_all_ranks, .bytes = room}, 9))
      all += each.words + "\n";
    return all;
  };
  config::RunConfig shared = recipe(4);
  shared.optimizer.use_distributed_optimizer = true;
  const auto with = static_cast<std::uint64_t>(of_all_ranks(resolve(shared)));
  EXPECT_THAT(words(with), HasSubstr("--use-distributed-optimizer\n"));
  EXPECT_THAT(words(with - 1), HasSubstr("--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads"));
}

TEST(MemoryOptions, WhereMemoryRanOutNeedLessByWhatWasWantedAndNoMoreThanThereWas) {
  EXPECT_EQ(room_where_memory_ran_out({.planned = 100, .wanted = 20}), 80u);
  EXPECT_EQ(room_where_memory_ran_out({.planned = 100, .wanted = 20, .held = 90, .free = 10}), 80u);
  EXPECT_EQ(room_where_memory_ran_out({.planned = 100, .wanted = 20, .held = 30, .free = 10}), 40u)
      << "others have taken the rest";
  EXPECT_EQ(room_where_memory_ran_out({.planned = 100, .held = 90, .free = 30}), 90u);
  EXPECT_EQ(room_where_memory_ran_out({.planned = 100, .wanted = 200}), 0u);
}

TEST(MemoryOptions, TextsNameEachAndItsSize) {
  EXPECT_EQ(options_text({}), "");
  EXPECT_EQ(options_text({{"--tp 2", 2'000'000'000}}), "--tp 2 (2.00 GB)");
  EXPECT_EQ(options_text({{"--a 1", 1000}, {"--b 2", 2000}, {"--c 3", 3000}}),
            "--a 1 (1.00 kB), --b 2 (2.00 kB) or --c 3 (3.00 kB)");
  EXPECT_EQ(planned_text({.parameters = 1000, .gradients = 2000}), "3.00 kB (parameters 1.00 kB, gradients 2.00 kB)");
}

}  // namespace
}  // namespace megatron::plan
