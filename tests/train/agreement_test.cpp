#include "megatron/train/resume/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/resumed_batch.h"
#include "megatron/train/trainer.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"

// Ranks that a program of its own has started with different recipes, or that see different files.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Agreement : public ::testing::Test {
 protected:
  void write_tokens(const std::string& name, int documents) const {
    data::IndexedDatasetWriter writer((folder_.path() / name).string(), data::DType::U16);
    const std::vector<std::int32_t> tokens(30, 7), lengths = {30};
    for (int i = 0; i < documents; ++i) writer.add_document(tokens, lengths);
    writer.publish();
  }

  config::RunConfig config() const {
    config::RunConfig config = testing::tiny_config(1, 2);
    config.data.data_path = {(folder_.path() / "text").string()};
    config.data.split = "1,0,0";
    config.train.out = (folder_.path() / "run").string();
    return config;
  }

  /// What each of two ranks throws in `body`, given its own recipe: rank 1's is changed by `change`.
  static std::vector<std::string> said(const config::RunConfig& config,
                                       const std::function<void(config::RunConfig&)>& change,
                                       const std::function<void(const plan::ResolvedRun&, const comm::Group&)>& body) {
    std::vector<std::string> said(2);
    comm::run_ranks(
        2,
        [&](const comm::Group& world) {
          kernels::configure_thread(1);
          config::RunConfig own = config;
          if (world.rank() == 1) change(own);
          try {
            body(plan::resolve(own), world);
          } catch (const comm::AgreedError& error) {
            said[static_cast<std::size_t>(world.rank())] = error.what();
          } catch (const std::exception& error) {
            said[static_cast<std::size_t>(world.rank())] = std::string("not agreed: ") + error.what();
          }
        },
        std::chrono::seconds(60));
    return said;
  }

  static void build_engine(const plan::ResolvedRun& run, const comm::Group& world) {
    const Engine engine(run, world, at::kCPU);
  }
  static void train_whole(const plan::ResolvedRun& run, const comm::Group& world) {
    train(run, /*eod=*/-1, world, at::kCPU, [] { return false; });
  }

  /// What the ranks throw in train_whole(), each in the folder machine0 or machine1.
  std::vector<std::string> on_machines(const config::RunConfig& config) const {
    return said(
        config, [](auto&) {},
        [&](const plan::ResolvedRun& run, const comm::Group& world) {
          ASSERT_EQ(::unshare(CLONE_FS), 0) << "a thread's own working folder";
          ASSERT_EQ(::chdir((folder_.path() / concat("machine", world.rank())).c_str()), 0);
          train_whole(run, world);
        });
  }

  const TemporaryFolder folder_;
};

TEST_F(Agreement, TheEngineComparesRecipesBeforeItsShapesMeet) {
  const auto differing = [&](const std::function<void(config::RunConfig&)>& change) {
    return said(testing::tiny_config(1, 2), change, build_engine);
  };
  EXPECT_THAT(differing([](auto&) {}), Each(std::string()));
  EXPECT_THAT(differing([](auto& config) { config.model.hidden_size = 48; }),
              Each(HasSubstr("model.hidden_size: rank 0: 24; rank 1: 48\n")));
  EXPECT_THAT(
      differing([](auto& config) { config.parallel.tp = 2; }),
      Each(AllOf(HasSubstr("parallel.tp: rank 0: 1; rank 1: 2\n"), HasSubstr("parallel.dp: rank 0: 2; rank 1: 1\n"))));
  EXPECT_THAT(differing([](auto& config) { config.schedule.lr = 0.5; }),
              Each(HasSubstr("schedule.lr: rank 0: 0.01; rank 1: 0.5\n")));
}

TEST_F(Agreement, WhatMachinesMayHaveOfTheirOwnMayDiffer) {
  EXPECT_THAT(said(
                  testing::tiny_config(1, 2),
                  [](auto& config) {
                    config.parallel.threads_per_rank = 1;
                    config.data.prefetch = 3;
                    config.data.data_cache_path = "elsewhere";
                    config.log.progress = "off";
                  },
                  build_engine),
              Each(std::string()));
}

TEST_F(Agreement, AnotherVersionOfTheProgramIsADifference) {
  std::vector<std::string> said(2);
  comm::run_ranks(2, [&](const comm::Group& world) {
    comm::Facts facts = recipe_facts(plan::resolve(testing::tiny_config(1, 2)));
    ASSERT_EQ(facts.at(0).name, "version of megatron");
    ASSERT_FALSE(facts[0].value.empty());
    if (world.rank() == 1) facts[0].value = "9.9";
    try {
      comm::require_agreement(world, facts);
    } catch (const comm::AgreedError& error) {
      said[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("version of megatron: rank 0: "), HasSubstr("; rank 1: 9.9\n"))));
}

TEST_F(Agreement, TrainingComparesDataAndWritesNothingWhereItDiffers) {
  write_tokens("text", 20);
  write_tokens("there", 20);
  const std::string here = (folder_.path() / "text").string(), there = (folder_.path() / "there").string();
  EXPECT_THAT(said(
                  config(), [&](auto& config) { config.data.data_path = {there}; }, train_whole),
              Each(HasSubstr(concat("data.data_path: rank 0: ", here, "; rank 1: ", there, "\n"))));
  EXPECT_FALSE(fs::exists(folder_.path() / "run"));
  EXPECT_FALSE(fs::exists(folder_.path() / "cache"));
}

TEST_F(Agreement, OneNameForOtherFilesIsADifference) {
  for (const int rank : {0, 1}) {
    fs::create_directory(folder_.path() / concat("machine", rank));
    write_tokens(concat("machine", rank, "/text"), 20 + rank);
  }
  auto options = config();
  options.data.data_path = {"text"};
  EXPECT_THAT(on_machines(options),
              Each(AllOf(HasSubstr("file text.idx: rank 0: "), HasSubstr("file text.bin: rank 0: 1200 bytes, XXH3 "),
                         HasSubstr("; rank 1: 1260 bytes, XXH3 "))));
  EXPECT_FALSE(fs::exists(folder_.path() / "run"));
}

/// "file NAME.bin" and its value, of data that is called so.
comm::Fact tokens_fact(config::RunConfig config, const fs::path& name) {
  config.data.data_path = {name.string()};
  for (const comm::Fact& fact : input_facts(config))
    if (fact.name == concat("file ", name.string(), ".bin")) return fact;
  return {};
}

TEST_F(Agreement, OtherTokensOfOneSizeAreADifference) {
  write_tokens("small", 20);
  write_tokens("large", 40000);  // of which places are looked at
  for (const char* name : {"small", "large"}) {
    const fs::path path = folder_.path() / name;
    const fs::path file = path.string() + ".bin";
    const std::string before = tokens_fact(config(), path).value, tokens = read_file(file, 1 << 26);
    ASSERT_THAT(before, HasSubstr(concat(tokens.size(), " bytes, XXH3 ")));
    for (const std::size_t at : {std::size_t{0}, tokens.size() / 17 * 8 + 9, tokens.size() - 1}) {
      std::string changed = tokens;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      write_file(file, changed);
      EXPECT_NE(tokens_fact(config(), path).value, before) << name << ", byte " << at;
    }
    write_file(file, tokens);
    EXPECT_EQ(tokens_fact(config(), path).value, before);
  }
}

TEST_F(Agreement, AFileThatOneRankCannotReadEndsAllWithItsReason) {
  comm::Facts facts = input_facts(config());
  ASSERT_FALSE(facts.empty());
  EXPECT_TRUE(facts.back().is_unread);
  EXPECT_THAT(facts.back().value, HasSubstr("No such file or directory")) << facts.back().name;
  for (const int rank : {0, 1}) {
    fs::create_directory(folder_.path() / concat("machine", rank));
    write_tokens(concat("machine", rank, "/text"), 20);
  }
  fs::remove(folder_.path() / "machine1/text.bin");
  auto options = config();
  options.data.data_path = {"text"};
  EXPECT_THAT(on_machines(options),
              Each(AllOf(StartsWith("rank 1: "), HasSubstr("text.bin: No such file or directory\n  fix: "))));
}

TEST_F(Agreement, RankZeroSaysWhereTheRunResumes) {
  write_tokens("text", 60);
  auto options = config();
  ASSERT_THAT(said(
                  options, [](auto&) {}, train_whole),
              Each(std::string()));
  const fs::path checkpoints = folder_.path() / "run/checkpoints";
  EXPECT_THAT(model_fact("model", checkpoints).value, HasSubstr("iteration 6, a manifest of "));
  EXPECT_EQ(model_fact("model", checkpoints).value, model_fact("model", checkpoints / "iter_0000006").value);
  EXPECT_EQ(model_fact("model", folder_.path() / "nowhere").value, "no such folder");
  EXPECT_THAT(said(
                  options, [](auto&) {}, require_equal_runs),
              Each(std::string()));
  const std::string before = model_fact("model", checkpoints).value;
  write_file(checkpoints / "iter_0000006/manifest.json", read_file(checkpoints / "iter_0000006/manifest.json") + " ");
  EXPECT_NE(model_fact("model", checkpoints).value, before);
}

TEST_F(Agreement, AResumedRunKeepsItsGlobalBatchAndSaysWhatChanged) {
  write_tokens("text", 60);
  auto options = config();
  options.train.micro_batch_size = 4;
  options.train.global_batch_size = 0;  // 4 x dp 2
  options.train.train_iters = 2;
  EXPECT_EQ(resumed_batch(options).size, 0) << "nothing to resume";
  ASSERT_THAT(said(
                  options, [](auto&) {}, train_whole),
              Each(std::string()));
  EXPECT_EQ(resumed_batch(options).size, 8);
  options.parallel.world_size = 4;
  options.schedule.lr = 0.02;
  options.train.seed = 5;
  options.log.interval = 3;
  const auto run = plan::resolve(options, {.resumed_batch = resumed_batch(options).size});
  EXPECT_EQ(run.config.train.global_batch_size, 8);
  EXPECT_THAT(check_checkpoint(folder_.path() / "run", run),
              ::testing::ElementsAre("warning: options differ from those of the checkpoint (saved -> now):",
                                     "  schedule.lr: 0.01 -> 0.02", "  train.micro_batch_size: 4 -> 2",
                                     "  train.seed: 1234 -> 5 (samples come in another order than before)"));
  options.checkpoint.load = (folder_.path() / "run").string();
  options.checkpoint.finetune = true;
  options.train.out = (folder_.path() / "tuned").string();
  EXPECT_EQ(resumed_batch(options).size, 0) << "a run of its own";
}

}  // namespace
}  // namespace megatron::train
