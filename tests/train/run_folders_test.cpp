#include "megatron/train/resume/run_folders.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/agreement.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

class RunFoldersTest : public ::testing::Test {
 protected:
  config::RunConfig config(const std::string& out, const std::string& save = "") const {
    config::RunConfig config;
    config.train.out = (folder_ / out).string();
    if (!save.empty()) config.checkpoint.save = (folder_ / save).string();
    return config;
  }

  static std::string error_of(const config::RunConfig& config) {
    try {
      const RunFolders folders(config);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "run";
};

TEST_F(RunFoldersTest, MakesWhatTheRunWrites) {
  const RunFolders folders(config("deep/run", "elsewhere/saved"));
  EXPECT_TRUE(fs::is_directory(folder_ / "deep/run"));
  EXPECT_TRUE(fs::is_directory(folder_ / "elsewhere/saved"));
}

TEST_F(RunFoldersTest, AnotherRunIsRefusedUntilTheFirstHasEnded) {
  std::optional<RunFolders> first(config("run"));
  EXPECT_NE(error_of(config("run")).find("another run holds"), std::string::npos);
  EXPECT_NE(error_of(config("other", "run/checkpoints")).find("another run holds"), std::string::npos)
      << "the folder of checkpoints alone";
  EXPECT_NE(error_of(config("run", "saved")).find("another run holds"), std::string::npos) << "that of metrics alone";
  EXPECT_EQ(error_of(config("other")), "no error");
  first.reset();
  EXPECT_EQ(error_of(config("run")), "no error");
}

TEST_F(RunFoldersTest, RefusesMetricsThatAreNoFileToAddLinesTo) {
  fs::create_directories(folder_ / "run/metrics.jsonl");
  fs::create_directories(folder_ / "full");
  fs::create_symlink("/dev/full", folder_ / "full/metrics.jsonl");
  const std::string fix = "fix:  remove or rename it, or name another --train.out";
  for (const char* out : {"run", "full"}) {
    const std::string error = error_of(config(out));
    EXPECT_NE(error.find((folder_ / out / "metrics.jsonl").string()), std::string::npos) << error;
    EXPECT_NE(error.find(fix), std::string::npos) << error;
    EXPECT_FALSE(fs::exists(folder_ / out / "checkpoints")) << "nothing is made then";
  }
  fs::create_directories(folder_ / "linked");
  std::ofstream(folder_ / "there") << "";
  fs::create_symlink(folder_ / "there", folder_ / "linked/metrics.jsonl");
  EXPECT_EQ(error_of(config("linked")), "no error");
}

TEST_F(RunFoldersTest, OneFolderMayServeForBoth) { EXPECT_EQ(error_of(config("run", "run")), "no error"); }

TEST_F(RunFoldersTest, TryingThemOutLeavesNothingThatWasNotThere) {
  try_run_folders(config("deep/run", "elsewhere/saved"));
  EXPECT_FALSE(fs::exists(folder_));
  const RunFolders held(config("run"));
  EXPECT_THROW(try_run_folders(config("run")), ConfigError) << "another run holds it";
  EXPECT_TRUE(fs::exists(folder_ / "run/.lock"));
}

TEST_F(RunFoldersTest, ARankTriesWhereTheRunSaves) {
  const auto files_in = [](const fs::path& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  fs::create_directories(folder_ / "there/checkpoints");
  for (const char* out : {"there", "deep/new"}) EXPECT_NO_THROW(try_to_save(config(out), 1)) << out;
  EXPECT_EQ(files_in(folder_), 1) << "what is missing is not made";
  EXPECT_EQ(files_in(folder_ / "there/checkpoints"), 0);
  std::ofstream(folder_ / "file") << "in the way";
  EXPECT_NO_THROW(try_to_save(config("file/run"), 1)) << "what is in the way is found by who makes folders";
  config::RunConfig nowhere = config("run", "/proc/saved");
  try {
    try_to_save(nowhere, 1);
    ADD_FAILURE() << "nobody can write there";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("saves in /proc/saved"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--checkpoint.save"), std::string::npos) << error.what();
  }
  nowhere.checkpoint.save_interval = -1;
  EXPECT_NO_THROW(try_to_save(nowhere, 1)) << "it saves nothing";
}

TEST_F(RunFoldersTest, AStartThatFailsLeavesNothingThatItHasMade) {
  const RunFolders first(config("run"));
  fs::create_directories(folder_ / "theirs");
  EXPECT_NE(error_of(config("deep/new", "run/checkpoints")).find("another run holds"), std::string::npos);
  EXPECT_NE(error_of(config("theirs", "run/checkpoints")).find("another run holds"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "deep"));
  EXPECT_TRUE(fs::is_empty(folder_ / "theirs"));
}

TEST_F(RunFoldersTest, KnowAFolderThatWasReplaced) {
  RunFolders folders(config("run", "saved"));
  EXPECT_NO_THROW(folders.require_held());
  EXPECT_TRUE(folders.are_held());
  fs::rename(folder_ / "saved", folder_ / "aside");
  EXPECT_THROW(folders.require_held(), std::runtime_error);
  const RunFolders others(config("other", "saved"));
  EXPECT_THROW(folders.require_held(), std::runtime_error);
  EXPECT_FALSE(folders.are_held());
}

TEST_F(RunFoldersTest, WhatStandsInPlaceOfLatestIsFoundBeforeTheRun) {
  const fs::path latest = folder_ / "run/checkpoints/latest";
  fs::create_directories(latest);
  EXPECT_NE(error_of(config("run")).find("latest, a folder"), std::string::npos) << error_of(config("run"));
  fs::remove(latest);
  ASSERT_EQ(mkfifo(latest.c_str(), 0600), 0);
  EXPECT_NE(error_of(config("run")).find("latest, which is none"), std::string::npos) << error_of(config("run"));
}

TEST_F(RunFoldersTest, NamesTheFolderThatCannotBeMade) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "no folder";
  EXPECT_NE(error_of(config("run", "file/saved")).find("file/saved"), std::string::npos);
  EXPECT_NE(error_of(config("file")).find("file"), std::string::npos);
}

TEST_F(RunFoldersTest, RefuseATraceThatCannotBeWritten) {
  auto options = config("run");
  options.log.trace = (folder_ / "run" / "traces" / "trace.json").string();
  EXPECT_EQ(error_of(options), "no error");
  EXPECT_TRUE(fs::is_directory(folder_ / "run" / "traces")) << "made as train.out is";
  options.log.trace = "trace.json";
  EXPECT_EQ(error_of(options), "no error") << "in the current folder";
  std::ofstream(folder_ / "file") << "x";
  options.log.trace = (folder_ / "file" / "trace.json").string();
  EXPECT_NE(error_of(options).find("fix:  name another: --log.trace"), std::string::npos) << error_of(options);
  fs::create_directories(folder_ / "folder.json");
  options.log.trace = (folder_ / "folder.json").string();
  EXPECT_NE(error_of(options).find("log.trace must name a file"), std::string::npos) << error_of(options);
}

TEST_F(RunFoldersTest, AFolderThatIsTriedIsLeftAsItWas) {
  try_folder(folder_ / "deep/tried", "another", [] {});
  EXPECT_FALSE(fs::exists(folder_)) << "nothing is left";
  fs::create_directories(folder_ / "there");
  EXPECT_THROW(try_folder(folder_ / "there", "another", [] { throw ConfigError("no"); }), ConfigError);
  EXPECT_TRUE(fs::is_empty(folder_ / "there"));
}

/// What ranks say of which the second one saves elsewhere, as on a host with a disk of its own there.
std::vector<std::string> said_of(const config::RunConfig& first, const config::RunConfig& second) {
  std::vector<std::string> said(2, "shared");
  comm::run_ranks(2, [&](const comm::Group& world) {
    try {
      require_shared_folder(world.rank() == 0 ? first : second, world);
    } catch (const comm::AgreedError& error) {
      said[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return said;
}

TEST_F(RunFoldersTest, EveryRankMustSeeTheFolderOfCheckpoints) {
  fs::create_directories(folder_ / "a");
  fs::create_directories(folder_ / "b");
  EXPECT_EQ(said_of(config("a"), config("a")), std::vector<std::string>(2, "shared"));
  const config::RunConfig deep_a = config("a/deep/run"), deep_b = config("b/deep/run");
  EXPECT_EQ(said_of(deep_a, deep_a), std::vector<std::string>(2, "shared"));
  const std::vector<std::string> said = said_of(deep_a, deep_b);
  EXPECT_EQ(said[0], said[1]);
  EXPECT_NE(said[0].find("rank 1: All ranks must see the folder"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find(deep_b.train.out), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("fix:  name a folder of a disk that all hosts share: --train.out"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_ / "a")) << "nothing is left";
  config::RunConfig a = config("a"), b = config("b");
  a.checkpoint.save_interval = b.checkpoint.save_interval = -1;
  EXPECT_EQ(said_of(a, b), std::vector<std::string>(2, "shared")) << "nothing is saved";
}

}  // namespace
}  // namespace megatron::train
