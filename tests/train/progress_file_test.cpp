#include "megatron/train/log/progress_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "megatron/base/files/file.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// The lines that a file of `before` has behind these once a job of 2 ranks has saved 3e15 operations after 10 s.
std::string lines_behind(const std::string& before, bool is_under_way = false) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "deep/progress.txt";
  if (!before.empty()) {
    std::filesystem::create_directories(folder.path() / "deep");
    write_file(path, before);
  }
  ProgressFile file(folder.path() / "deep", {.id = "77", .ranks = 2, .flops = 1e15});
  file.save({.iteration = 40, .flops = 3e15, .tokens = 1.5e9, .seconds = 10, .is_under_way = is_under_way});
  if (is_under_way) file.saved();
  file.saved();  // nothing is under way
  return read_file(path).substr(before.size());
}

constexpr const char* kStamp = "^20[0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9]";

TEST(ProgressFile, HasMegatronLmsLines) {
  const std::string lines = lines_behind("");
  EXPECT_THAT(lines, ContainsRegex(std::string(kStamp) + "\tJob ID: 77\t# GPUs: 2\tStarting job\n"));
  // 2e15 operations in 10 s of 2 ranks are 100 TFLOP/s each.
  EXPECT_THAT(lines, HasSubstr("\tSaved checkpoint\tIteration: 40\tJob throughput: 100.0 TFLOP/s/GPU\t"
                               "Cumulative throughput: "));
  EXPECT_THAT(lines, HasSubstr("\tFloating-point operations: 3.00e+15\tTokens (in billions): 1.50\n"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST(ProgressFile, SaysWhenASaveIsThere) {
  const std::string lines = lines_behind("", /*is_under_way=*/true);
  EXPECT_THAT(lines, HasSubstr("\tSaving async checkpoint\tIteration: 40\t"));
  EXPECT_THAT(lines, ContainsRegex("\tSaved async checkpoint\tIteration: 40\n$"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
}

TEST(ProgressFile, CountsFromTheFirstJobOfAsManyRanks) {
  const auto line = [](const char* time, int ranks, const std::string& text) {
    return std::string(time) + "\tJob ID: \t# GPUs: " + std::to_string(ranks) + "\t" + text + "\n";
  };
  const std::string saved =
      "Saved checkpoint\tIteration: 4\tJob throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: "
      "1.0 TFLOP/s/GPU\tFloating-point operations: 1.00e+15\tTokens (in billions): 0.00";
  const std::string one = line("2001-01-01 00:00:00", 2, "Starting job") + line("2001-01-02 00:00:00", 2, saved);
  // Since 2001 2e15 operations and more are next to nothing a second.
  EXPECT_THAT(lines_behind(one), HasSubstr("Cumulative throughput: 0.0 TFLOP/s/GPU"));
  // A job of 4 ranks came in between: the count starts over with the job at hand, which is less than a second old.
  EXPECT_THAT(lines_behind(one + line("2001-01-03 00:00:00", 4, "Starting job")),
              Not(HasSubstr("Cumulative throughput: 0.0 TFLOP/s/GPU")));
  // What others wrote there is no line of it.
  EXPECT_THAT(lines_behind("a\tb\n\n# GPUs: 2\nx\ty\t# GPUs: z\tStarting job\n"),
              HasSubstr("Job throughput: 100.0 TFLOP/s/GPU"));
}

}  // namespace
}  // namespace megatron::train
