#include "megatron/supervise/run_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "megatron/base/files/write_error.h"
#include "megatron/supervise/events.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::supervise {
namespace {

class RunFiles : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(file(name)) << text; }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::app) << text;
  }

  TemporaryFolder folder_;
};

TEST_F(RunFiles, LinesComeOnceAndWhole) {
  LineTail tail(file("lines"));
  EXPECT_TRUE(tail.next().lines.empty()) << "there is no file yet";
  write("lines", "one\ntwo\nthr");
  EXPECT_EQ(tail.next().lines, (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(tail.next().lines.empty());
  append("lines", "ee\n\nfour\n");
  EXPECT_EQ(tail.next().lines, (std::vector<std::string>{"three", "four"}));
}

TEST_F(RunFiles, AFileThatIsWrittenAgainIsReadAgain) {
  LineTail tail(file("lines"));
  write("lines", "one\ntwo\nthree\n");
  EXPECT_EQ(tail.next().lines.size(), 3U);
  write("new", "one\ntwo\n");
  std::filesystem::rename(file("new"), file("lines"));
  const LineTail::Lines again = tail.next();
  EXPECT_TRUE(again.again);
  EXPECT_EQ(again.lines, (std::vector<std::string>{"one", "two"}));
}

TEST_F(RunFiles, ALineThatIsTooLongIsLeftOut) {
  LineTail tail(file("lines"));
  write("lines", "one\n" + std::string(3 << 20, 'x') + "\ntwo\n");
  EXPECT_EQ(tail.next().lines, (std::vector<std::string>{"one", "two"}));
}

TEST_F(RunFiles, RestartsAreThoseThatASupervisorHasTold) {
  EXPECT_EQ(restarts_told(file("events.jsonl")), 0);
  EventLog supervisor(file("events.jsonl"), "supervisor"), run(file("events.jsonl"), "run");
  supervisor.write("started", {{"attempt", 0}});
  supervisor.write("restart", {{"attempt", 1}});
  run.write("restart", {{"attempt", 9}});
  append("events.jsonl", "not JSON\n[1]\n{\"event\":\"restart\"}\n{\"source\":1,\"event\":{}}\n");
  supervisor.write("restart", {{"attempt", 2}});
  EXPECT_EQ(restarts_told(file("events.jsonl")), 2);
}

TEST_F(RunFiles, CurvesFollowARunThatGoesBack) {
  RunCurves curves(folder_.path());
  write(
      "metrics.jsonl",
      "{\"iteration\":1,\"loss\":3.5,\"step_ms\":7}\n{\"iteration\":2,\"loss\":null,\"skipped\":true}\nnot JSON\n[1]\n"
      "{\"iteration\":2,\"valid_loss\":3.25}\n");
  curves.update();
  ASSERT_EQ(curves.steps().size(), 2U);
  EXPECT_EQ(curves.steps()[0].loss, 3.5);
  EXPECT_EQ(curves.steps()[0].step_ms, 7);
  EXPECT_TRUE(std::isnan(curves.steps()[1].loss) && std::isnan(curves.steps()[0].grad_norm));
  EXPECT_TRUE(curves.steps()[1].skipped);
  ASSERT_EQ(curves.validations().size(), 1U);
  write("other", "{\"iteration\":1,\"loss\":3.5}\n");
  std::filesystem::rename(file("other"), file("metrics.jsonl"));
  curves.update();
  EXPECT_EQ(curves.steps().size(), 1U);
  EXPECT_TRUE(curves.validations().empty());
}

TEST_F(RunFiles, LinesOfManyExpertsAreReadAndThoseOfTooManyShowNone) {
  const auto line = [](int layers) {
    std::string row = "[1";
    for (int expert = 1; expert < 256; ++expert) row += ",123456";
    std::string rows = row + "]";
    for (int layer = 1; layer < layers; ++layer) rows += "," + row + "]";
    return "{\"iteration\":1,\"loss\":2,\"expert_imbalance\":1,\"expert_loads\":[" + rows + "]}\n";
  };
  RunCurves curves(folder_.path());
  write("metrics.jsonl", line(61));
  EXPECT_TRUE(curves.update());
  EXPECT_FALSE(curves.update());
  ASSERT_TRUE(curves.experts());
  EXPECT_EQ(curves.experts()->copies.size(), 61U);
  EXPECT_EQ(curves.experts()->copies[60][255], 123456);
  std::string many = "[[1]";
  for (int i = 0; i < 65536; ++i) many += ",[1]";
  append("metrics.jsonl", "{\"iteration\":2,\"loss\":2,\"expert_imbalance\":1,\"expert_loads\":" + many + "]}\n");
  EXPECT_TRUE(curves.update());
  ASSERT_TRUE(curves.experts());
  EXPECT_TRUE(curves.experts()->copies.empty());
  EXPECT_EQ(curves.steps().size(), 2U);
}

TEST_F(RunFiles, TheNewestCheckpointIsWhatLatestNames) {
  EXPECT_FALSE(newest_checkpoint(folder_.path()));
  for (const auto& [text, iteration] : {std::pair<std::string, std::int64_t>{"iter_0000120\n", 120},
                                        {"iter_", -1},
                                        {"", -1},
                                        {"other_12", -1},
                                        {"iter_99999999999999999999", -1}}) {
    write("latest", text);
    EXPECT_EQ(newest_checkpoint(folder_.path()).value_or(-1), iteration) << text;
  }
}

TEST_F(RunFiles, HeartbeatsAreReadWhateverTheySay) {
  write("beat", R"({"unix_s":5.5,"phase":"step","iteration":7,"operations":100,"train_iters":9,"world_size":4})");
  const auto beat = read_heartbeat(file("beat"));
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->phase, "step");
  EXPECT_EQ(beat->iteration, 7);
  EXPECT_EQ(beat->operations, 100);
  for (const char* text : {"", "[]", "{\"phase\":[", "{\"iteration\":\"x\",\"phase\":3}"}) {
    write("beat", text);
    EXPECT_EQ(read_heartbeat(file("beat")).value_or(Heartbeat()).iteration, 0) << text;
  }
}

TEST_F(RunFiles, EventsWaitForTheirFolder) {
  const auto path = folder_.path() / "run" / "events.jsonl";
  EventLog log(path, "supervisor");
  log.write("started", {{"attempt", 0}});
  EXPECT_FALSE(std::filesystem::exists(path.parent_path()));
  std::filesystem::create_directory(path.parent_path());
  log.write("failed", {{"signal", 9}, {"last_line", "\xff"}});
  LineTail tail(path);
  const auto lines = tail.next().lines;
  ASSERT_EQ(lines.size(), 2U);
  const auto first = nlohmann::json::parse(lines[0]), second = nlohmann::json::parse(lines[1]);
  EXPECT_EQ(first["event"], "started");
  EXPECT_EQ(first["source"], "supervisor");
  EXPECT_EQ(second["signal"], 9);
  EXPECT_EQ(second["time"].get<std::string>().size(), 24U) << second;
}

TEST(EventLog, LeavesTheFolderOfAnotherRunAlone) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "events.jsonl";
  bool is_own = false;
  EventLog log(file, "supervisor", [&] { return is_own; });
  log.write("started", {{"attempt", 0}});
  EXPECT_FALSE(std::filesystem::exists(file));
  is_own = true;
  log.write("failed", {{"attempt", 0}});
  std::ifstream in(file);
  std::vector<std::string> events;
  for (std::string line; std::getline(in, line);) events.push_back(nlohmann::json::parse(line)["event"]);
  EXPECT_EQ(events, (std::vector<std::string>{"started", "failed"}));
}

TEST_F(RunFiles, NobodyWaitsForAPipeInPlaceOfEvents) {
  ASSERT_EQ(mkfifo(file("events.jsonl").c_str(), 0600), 0);
  EXPECT_THROW(append_lines(file("events.jsonl"), "{}\n"), std::runtime_error);
}

TEST(ReplaceFile, LeavesNothingBehindWhereItCannotWrite) {
  const TemporaryFolder folder;
  let_large_writes_fail();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  bool failed = false;
  try {
    replace_file(folder.path() / "heartbeat.json", "{}");
  } catch (const std::runtime_error&) {
    failed = true;
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(failed);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace megatron::supervise
