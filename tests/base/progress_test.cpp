#include "megatron/base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "megatron/base/error.h"
#include "megatron/base/log.h"

namespace megatron {
namespace {

/// A stream that is no terminal, and what was written to it.
class Capture {
 public:
  Capture() : stream_(std::tmpfile()) {}
  ~Capture() { std::fclose(stream_); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::FILE* stream() const { return stream_; }
  std::string text() const {
    std::string out(static_cast<std::size_t>(std::ftell(stream_)), '\0');
    EXPECT_EQ(std::fseek(stream_, 0, SEEK_SET), 0);
    out.resize(std::fread(out.data(), 1, out.size(), stream_));
    return out;
  }

 private:
  std::FILE* stream_;
};

TEST(HumanNumbers, KeepThreeDigits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(12'345), "12.3 kB");
  EXPECT_EQ(human_bytes(999'600), "1.00 MB");
  EXPECT_EQ(human_bytes(76.1e6), "76.1 MB");
  EXPECT_EQ(human_bytes(5e15), "5000 TB");
  EXPECT_EQ(human_count(831), "831");
  EXPECT_EQ(human_count(4'050'000), "4.05 M");
  EXPECT_EQ(human_duration(41.6), "42 s");
  EXPECT_EQ(human_duration(187), "3:07");
  EXPECT_EQ(human_duration(3729), "1:02:09");
  EXPECT_EQ(human_duration(-1), "unknown");
}

TEST(ProgressLine, GivesShareRateAndTimeLeft) {
  EXPECT_EQ(
      progress_line(
          {.what = "preprocess", .unit = "bytes", .done = 30'000'000, .total = 90'000'000, .elapsed_s = 3, .note = ""}),
      "preprocess  33 %  30.0 MB of 90.0 MB  10.0 MB/s  ETA 6 s");
  EXPECT_EQ(
      progress_line({.what = "train", .unit = "steps", .done = 50, .total = 100, .elapsed_s = 100, .note = "loss 3.2"}),
      "train  50 %  50 of 100 steps  0.50/s  ETA 1:40  loss 3.2");
}

TEST(ProgressLine, CountsOnlyThisRunsWorkInTheRate) {
  EXPECT_EQ(progress_line(
                {.what = "train", .unit = "steps", .first = 90, .done = 95, .total = 100, .elapsed_s = 1, .note = ""}),
            "train  95 %  95 of 100 steps  5.00/s  ETA 1 s");
}

TEST(ProgressLine, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(progress_line({.what = "read", .unit = "bytes", .done = 10, .elapsed_s = 1, .note = ""}),
            "read  10 B  10 B/s");
  EXPECT_EQ(progress_line({.what = "read", .unit = "bytes", .total = 10, .elapsed_s = 1, .note = ""}),
            "read  0 %  0 B of 10 B");
}

/// A terminal, and what a program that writes to it shows.
class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    grantpt(master_);
    unlockpt(master_);
    stream_ = std::fopen(ptsname(master_), "w");
  }
  ~Terminal() {
    std::fclose(stream_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  std::FILE* stream() const { return stream_; }
  /// All that is shown up to the end of a line; waits for it.
  std::string line() const {
    std::string out;
    for (char c = 0; c != '\n' && read(master_, &c, 1) == 1;) out += c;
    return out;
  }

 private:
  int master_;
  std::FILE* stream_;
};

TEST(Progress, RedrawsOneLineOnATerminal) {
  for (const Progress::Mode mode : {Progress::Mode::Auto, Progress::Mode::On}) {
    Terminal terminal;
    ASSERT_TRUE(is_terminal(terminal.stream()));
    {
      Progress progress("work", "items", 4, mode, terminal.stream());
      Stopwatch waited;
      while (waited.seconds() < 0.25) progress.update(1);  // past the interval of redrawing, once
      progress.update(4, "done");
    }
    const std::string text = terminal.line();
    EXPECT_THAT(text, testing::StartsWith("\r\x1b[Kwork  25 %  1 of 4 items"));
    EXPECT_THAT(text, testing::ContainsRegex("\r\x1b\\[Kwork  100 %  4 of 4 items  .*  done\r\n$"));
  }
}

TEST(Progress, LeavesAPipeAloneUnlessItIsAskedFor) {
  Capture capture;
  {
    Progress progress("work", "items", 4, Progress::Mode::Auto, capture.stream(), 0);
    for (int i = 1; i <= 4; ++i) progress.update(i);
  }
  EXPECT_EQ(capture.text(), "");
}

TEST(Progress, WritesWholeLinesToAPipeAndTheLastOfThemOnce) {
  Capture capture;
  {
    Progress progress("work", "items", 4, Progress::Mode::On, capture.stream(), 0);
    for (int i = 1; i <= 4; ++i) progress.update(i);
    progress.finish();
  }
  const std::string text = capture.text();
  EXPECT_THAT(text, testing::MatchesRegex("work  25 % .*\nwork  50 % .*\nwork  75 % .*\nwork  100 % .*\n"));
  EXPECT_THAT(text, testing::Not(testing::ContainsRegex("[\r\x1b]")));
}

TEST(Progress, SaysTheEndOfAShortJobWhereItIsAskedFor) {
  Capture capture;
  {
    Progress progress("work", "items", 4, Progress::Mode::On, capture.stream());
    for (int i = 1; i <= 4; ++i) progress.update(i);
  }
  EXPECT_THAT(capture.text(), testing::MatchesRegex("work  100 %  4 of 4 items[^\n]*\n"));
}

TEST(Progress, IsSilentWhereItIsOff) {
  Capture capture;
  {
    Progress off("work", "items", 4, Progress::Mode::Off, capture.stream(), 0);
    off.update(4);
    off.finish();
  }
  EXPECT_EQ(capture.text(), "");
}

TEST(Progress, ModesHaveNames) {
  EXPECT_EQ(Progress::mode_of("auto"), Progress::Mode::Auto);
  EXPECT_EQ(Progress::mode_of("on"), Progress::Mode::On);
  EXPECT_EQ(Progress::mode_of("off"), Progress::Mode::Off);
  EXPECT_THROW(Progress::mode_of("yes"), ConfigError);
}

TEST(Logger, PutsTheNameBeforeEveryLine) {
  Capture capture;
  Logger("rank 3", capture.stream()).info("read ", 7, " files");
  Logger("", capture.stream()).info("plain");
  EXPECT_EQ(capture.text(), "rank 3: read 7 files\nplain\n");
}

}  // namespace
}  // namespace megatron
