#include "megatron/supervise/screen/dashboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/testing/temporary_folder.h"

namespace megatron::supervise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int columns_of(const std::string& line) {
  int columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return columns;
}

TEST(BlockChart, FillsTheColumnOfTheHighest) {
  EXPECT_EQ(block_chart({0, 7, 3.5}, 3, 1), (std::vector<std::string>{"▁█▅"}));
  EXPECT_EQ(block_chart({0, 15}, 2, 2), (std::vector<std::string>{" █", "▁█"}));
}

TEST(BlockChart, AveragesWhatSharesAColumnAndLeavesGaps) {
  EXPECT_EQ(block_chart({0, 0, 7, 7, 0, 14}, 3, 1), (std::vector<std::string>{"▁██"}));
  EXPECT_EQ(block_chart({1, NAN, 2}, 3, 1), (std::vector<std::string>{"▁ █"}));
  EXPECT_EQ(block_chart({NAN, NAN}, 2, 1), (std::vector<std::string>{"  "}));
  EXPECT_EQ(block_chart({}, 10, 1), (std::vector<std::string>{""}));
  EXPECT_EQ(block_chart({5, 5}, 10, 1), (std::vector<std::string>{"▄▄"}));
}

class Dashboard : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_.path() / name) << text; }
  std::string drawn(int width, int height, double now = 1000) const {
    std::vector<WatchedRun> runs;
    runs.emplace_back("runs/a", folder_.path());
    runs.back().update();
    return dashboard(runs, width, height, now);
  }

  TemporaryFolder folder_;
};

TEST_F(Dashboard, SaysWhereARunStands) {
  std::string lines;
  for (int i = 1; i <= 40; ++i)
    lines +=
        "{\"iteration\":" + std::to_string(i) + ",\"loss\":" + std::to_string(8.0 - 0.1 * i) +
        ",\"grad_norm\":1.5,\"learning_rate\":0.001,\"tokens_per_s\":12000,\"step_ms\":500,\"memory_bytes\":1000000,"
        "\"peak_memory_bytes\":2000000}\n";
  write("metrics.jsonl", lines + "{\"iteration\":40,\"valid_loss\":4.25}\n");
  write("heartbeat.json", R"({"unix_s":970,"phase":"step","iteration":41,"train_iters":100})");
  write("events.jsonl",
        "{\"time\":\"2026-11-24T07:12:04.885Z\",\"source\":\"supervisor\",\"event\":\"failed\",\"signal\":9}\n");
  const std::string text = drawn(160, 24);
  EXPECT_THAT(text, HasSubstr("runs/a · iteration 40 of 100 (40 %) · ETA 30 s · step, last heartbeat 30 s ago\n"));
  EXPECT_THAT(text,
              HasSubstr("loss 4.0000 (lowest 4.0000 at 40) · valid 4.2500 at 40 · lr 1.000e-03 · grad norm 1.500"));
  EXPECT_THAT(text, HasSubstr("12.0 k tokens/s"));
  EXPECT_THAT(text, HasSubstr("07:12:04 supervisor: failed · signal 9\n"));
  EXPECT_THAT(text, HasSubstr("█"));
  EXPECT_THAT(drawn(80, 24), HasSubstr("\n  loss 4.0000 (lowest 4.0000 at 40) · valid 4.2500 at 40 · lr 1.000e-03\n"
                                       "  grad norm 1.500 · 12.0 k tokens/s · 500 ms · 1.00 MB (peak 2.00 MB)\n"));
}

TEST_F(Dashboard, TellsHowUnevenlyExpertsAreUsed) {
  // Of 20 and 40 copies: 1/20 is the least share and 30/40 the most.
  write("metrics.jsonl", R"({"iteration":1,"loss":3,"expert_imbalance":1,"expert_loads":[[5,5,5,5],[9,11,10,10]]})"
                         "\n"
                         R"({"iteration":2,"loss":2,"expert_imbalance":3,"expert_dropped":0.0125,)"
                         R"("expert_loads":[[5,8,6,1],[2,3,5,30]]})"
                         "\n{\"iteration\":2,\"valid_loss\":4}\n");
  EXPECT_THAT(drawn(160, 24),
              HasSubstr("  expert load: most 75 % (layer 1, expert 3) · least 5 % (layer 0, expert 3) · "
                        "even 25 % · dropped 1.25 %\n"));
}

TEST_F(Dashboard, TellsOfExpertsWhatTheFileHas) {
  write("metrics.jsonl", "{\"iteration\":1,\"loss\":3,\"expert_imbalance\":2.5}\n");
  EXPECT_THAT(drawn(160, 24), HasSubstr("  expert load: most 2.5 x the mean of its layer\n"));
  write("metrics.jsonl", "{\"iteration\":1,\"loss\":3}\n");
  EXPECT_THAT(drawn(160, 24), Not(HasSubstr("expert")));
  for (const char* loads :
       {"[]", "[[]]", "[[1,2],[3]]", "[[-1,2]]", "[[0,0]]", "[[1e308,1e308]]", "[[1,\"x\"]]", "7"}) {
    write("metrics.jsonl", std::string("{\"iteration\":1,\"loss\":3,\"expert_imbalance\":null,\"expert_dropped\":[],"
                                       "\"expert_loads\":") +
                               loads + "}\n");
    EXPECT_THAT(drawn(160, 24), Not(HasSubstr("expert"))) << loads;
  }
}

TEST_F(Dashboard, FitsTheScreen) {
  std::string lines;
  for (int i = 1; i <= 500; ++i)
    lines += "{\"iteration\":" + std::to_string(i) + ",\"loss\":" + std::to_string(5 + std::sin(i)) +
             ",\"expert_imbalance\":1,\"expert_loads\":[[1,2]]}\n";
  write("metrics.jsonl", lines);
  write("events.jsonl", "{\"event\":\"" + std::string(1000, 'x') + "\"}\n");
  for (const int width : {4, 20, 80, 200})
    for (const int height : {4, 10, 24, 60}) {
      const std::string text = drawn(width, height);
      int count = 0;
      for (std::size_t begin = 0; begin < text.size(); ++count) {
        const std::size_t end = text.find('\n', begin);
        EXPECT_LE(columns_of(text.substr(begin, end - begin)), width);
        begin = end + 1;
      }
      EXPECT_LE(count, height) << width;
    }
}

TEST_F(Dashboard, ShowsNothingThatATerminalObeys) {
  // A control sequence, its 8-bit form (U+009B), DEL, a bell, a title, and marks of direction.
  const std::string marks = "\\u001b[2J\\u009b2J\\u007f\\u0007\\u001b]0;x\\u0007\\u202e\\u2066";
  write("metrics.jsonl", "{\"iteration\":1,\"loss\":1}\n");
  write("events.jsonl", "{\"time\":\"" + marks + "\",\"event\":\"a" + marks + "b\",\"source\":\"" + marks + "\",\"n" +
                            marks + "\":\"x" + marks + "\"}\n");
  write("heartbeat.json", "{\"phase\":\"p" + marks + "\"}");
  const std::string text = drawn(400, 24);
  EXPECT_THAT(text, AllOf(HasSubstr("· p"), HasSubstr("x\\x1b[2J"))) << "they are told, not obeyed";
  for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  for (const char* obeyed : {"\x7f", "\xc2\x9b", "\u202e", "\u2066"}) EXPECT_EQ(text.find(obeyed), std::string::npos);
}

TEST_F(Dashboard, SurvivesFiguresThatNoRunHas) {
  write("metrics.jsonl", R"({"iteration":-9223372036854775808,"loss":1e308,"step_ms":1e308,"tokens_per_s":-1e308})"
                         "\n"
                         R"({"iteration":-9223372036854775807,"loss":-1e308,"step_ms":1})"
                         "\n");
  write("heartbeat.json", R"({"unix_s":-1e308,"phase":"step","iteration":1,"train_iters":9223372036854775807})");
  EXPECT_THAT(drawn(160, 24), HasSubstr("ETA unknown"));
}

TEST_F(Dashboard, SaysHowARunHasEnded) {
  write("heartbeat.json", R"({"unix_s":970,"phase":"failed"})");
  EXPECT_THAT(drawn(80, 24), HasSubstr("iteration 0 · failed\n"));
}

TEST(Watched, AFolderMayComeLater) {
  const TemporaryFolder parent;
  std::vector<WatchedRun> runs;
  runs.emplace_back("late", parent.path() / "late");
  runs.back().update();
  EXPECT_THAT(dashboard(runs, 80, 24, 1000), HasSubstr("waiting for its folder"));
  std::filesystem::create_directory(parent.path() / "late");
  std::ofstream(parent.path() / "late/metrics.jsonl") << "{\"iteration\":3,\"loss\":2}\n";
  std::ofstream(parent.path() / "late/recipe.toml") << "[train]\ntrain_iters = 12\n";
  runs.back().update();
  EXPECT_THAT(dashboard(runs, 80, 24, 1000), HasSubstr("iteration 3 of 12 (25 %)"));
}

TEST_F(Dashboard, ARunWithoutFilesHasNoSteps) { EXPECT_THAT(drawn(80, 24), HasSubstr("no steps yet")); }

}  // namespace
}  // namespace megatron::supervise
