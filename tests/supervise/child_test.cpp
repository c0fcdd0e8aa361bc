#include "megatron/supervise/child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "megatron/base/error.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::supervise {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

bool never() { return false; }

ProgramStart shell(const std::string& script) { return {.path = "/bin/sh", .words = {"sh", "-c", script}}; }

/// While it lives, this process's stderr is a pipe that nobody reads.
class StderrWithoutReader {
 public:
  StderrWithoutReader() : before_(dup(STDERR_FILENO)) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    dup2(ends[1], STDERR_FILENO);
    for (const int end : ends) close(end);
  }
  ~StderrWithoutReader() {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }
  StderrWithoutReader(const StderrWithoutReader&) = delete;
  StderrWithoutReader& operator=(const StderrWithoutReader&) = delete;

 private:
  int before_;
};

TEST(Child, TellsHowItEnded) {
  const HeldSignals signals;
  const ChildEnd end = run_child(shell("echo first >&2; echo last >&2; exit 7"), signals, never, 0);
  EXPECT_EQ(end.code, 7);
  EXPECT_EQ(end.signal, 0);
  EXPECT_EQ(last_line(end.last_errors), "last");
  const ChildEnd killed = run_child(shell("kill -9 $$"), signals, never, 0);
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_EQ(killed.signal, SIGKILL);
}

TEST(Child, WhatCannotBeExecutedIsSaid) {
  const HeldSignals signals;
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "text").string();
  std::ofstream(file) << "text\n";
  EXPECT_THAT([&] { run_child({.path = file, .words = {"text"}}, signals, never, 0); },
              ThrowsMessage<ConfigError>(HasSubstr(file + ": Permission denied")));
  EXPECT_THAT([&] { run_child({.path = "/nowhere/at/all", .words = {"all"}}, signals, never, 0); },
              ThrowsMessage<ConfigError>(HasSubstr("/nowhere/at/all: No such file")));
}

TEST(Child, AReaderThatGoesAwayEndsNobody) {
  const StderrWithoutReader without;
  const HeldSignals signals;
  const ChildEnd end = run_child(shell("echo words >&2; exit 7"), signals, never, 0);
  EXPECT_EQ(end.code, 7);
  EXPECT_EQ(end.last_errors, "words\n");
  EXPECT_EQ(run_child(shell("kill -PIPE $$; exit 0"), signals, never, 0).signal, SIGPIPE) << "the job is as usual";
}

TEST(Child, TheSecondSignalEndsItAtOnce) {
  const TemporaryFolder folder;
  const auto ready = folder.path() / "ready";
  const HeldSignals signals;
  int sent = 0;
  const auto send = [&] {
    constexpr int kSignals[] = {SIGTERM, SIGINT};
    if (std::filesystem::exists(ready) && sent < 2) kill(getpid(), kSignals[sent++]);
    return false;
  };
  const ChildEnd end = run_child(
      shell(concat("trap '' TERM INT; : >", ready.string(), "; while :; do sleep 1000; done")), signals, send, 0);
  EXPECT_TRUE(end.stopped);
  EXPECT_EQ(end.code, 128 + SIGINT);
  EXPECT_EQ(sent, 2);
}

TEST(Child, AJobThatIsStuckIsEndedAndNothingIsLeft) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "pid";
  const HeldSignals signals;
  const ChildEnd end = run_child(
      shell(concat("setsid sleep 1000 & echo $! >", file.string(), ".new; mv ", file.string(), ".new ", file.string(),
                   "; sleep 1000")),
      signals, [&] { return std::filesystem::exists(file); }, 0);
  EXPECT_TRUE(end.hung);
  EXPECT_EQ(end.signal, SIGKILL);
  pid_t orphan = 0;
  std::ifstream(file) >> orphan;
  ASSERT_GT(orphan, 0);
  EXPECT_NE(kill(orphan, 0), 0) << "an orphan in a group of its own";
}

}  // namespace
}  // namespace megatron::supervise
