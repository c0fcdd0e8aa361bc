#include "megatron/data/index/index_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "megatron/base/files/file.h"
#include "tests/data/support.h"

namespace megatron::data {
namespace {

using testing::HasSubstr;

/// Both ends of a pipe: one process tells another that it is somewhere.
class Signal {
 public:
  Signal() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
  }
  ~Signal() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void give() const { EXPECT_EQ(::write(ends_[1], "x", 1), 1); }
  void await() const {
    char byte;
    EXPECT_EQ(::read(ends_[0], &byte, 1), 1);
  }

 private:
  std::array<int, 2> ends_{};
};

/// Runs `work` in a process of its own, which ends with 0 unless it throws.
pid_t start(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    work();
    ::_exit(0);
  } catch (...) {
    ::_exit(1);
  }
}

int status_of(pid_t pid) {
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

/// Adds a line to a file of many writers.
void note(const std::string& path, const std::string& line) {
  std::FILE* const file = std::fopen(path.c_str(), "a");
  std::fputs((line + "\n").c_str(), file);
  std::fclose(file);
}

struct Cache {
  TemporaryFolder folder;
  const CacheEntry entry{folder / "cache", "Test-train", "what decides the contents\n"};
  const std::string builds = folder / "builds";

  void build(const std::string& content = "content") const {
    note(builds, concat(::getpid()));
    write_file(entry.file("a.npy"), content);
    write_file(entry.file("b.npy"), content);
  }
  bool build_once(const WaitMessage& say = {}) const {
    return data::build_once(
        entry, {"a.npy", "b.npy"}, [&] { build(); }, say);
  }
};

TEST(IndexCache, IsBuiltByOneOfManyProcessesAndFoundByTheOthers) {
  const Cache cache;
  std::vector<pid_t> processes;
  for (int i = 0; i < 8; ++i)
    processes.push_back(start([&] {
      cache.build_once();
      if (read_bytes(cache.entry.file("b.npy")) != "content") throw std::runtime_error("not there yet");
    }));
  for (const pid_t pid : processes) EXPECT_EQ(status_of(pid), 0);
  EXPECT_EQ(std::ranges::count(read_bytes(cache.builds), '\n'), 1);
  EXPECT_FALSE(cache.build_once());
}

TEST(IndexCache, IsBuiltByOneOfManyThreads) {
  const Cache cache;
  std::atomic<int> built = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { built += cache.build_once() ? 1 : 0; });
  threads.clear();
  EXPECT_EQ(built, 1);
}

TEST(IndexCache, IsBuiltByTheNextInLineWhenTheBuilderIsKilled) {
  const Cache cache;
  const Signal building, never;
  const pid_t builder = start([&] {
    build_once(cache.entry, {"a.npy", "b.npy"}, [&] {
      write_file(cache.entry.file("a.npy"), "half of it");
      building.give();
      never.await();
    });
  });
  building.await();
  const Signal asked;
  const pid_t waiting = start([&] {
    asked.give();
    if (!cache.build_once()) throw std::runtime_error("nobody else was there to build it");
  });
  asked.await();
  EXPECT_EQ(::waitpid(waiting, nullptr, WNOHANG), 0) << "it waits while the builder lives";
  ::kill(builder, SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(status_of(builder)));
  EXPECT_EQ(status_of(waiting), 0);
  EXPECT_EQ(read_bytes(cache.entry.file("a.npy")), "content");
}

TEST(IndexCache, SaysWhatItWaitsForAndWhoBuildsIt) {
  const Cache cache;
  const Signal building, go_on;
  const pid_t builder = start([&] {
    build_once(cache.entry, {"a.npy", "b.npy"}, [&] {
      building.give();
      go_on.await();
      cache.build();
    });
  });
  building.await();
  std::string message;
  EXPECT_FALSE(cache.build_once([&](const std::string& text) {
    message = text;
    go_on.give();
  }));
  EXPECT_EQ(status_of(builder), 0);
  EXPECT_THAT(message, testing::AllOf(HasSubstr(cache.entry.file("a.npy")), HasSubstr(concat("process ", builder)),
                                      HasSubstr("waited")));
}

TEST(IndexCache, TriesAgainAfterABuildThatFailed) {
  const Cache cache;
  EXPECT_THROW(build_once(cache.entry, {"a.npy"}, [] { throw std::runtime_error("disk full"); }), std::runtime_error);
  EXPECT_TRUE(cache.build_once());
  EXPECT_EQ(read_bytes(cache.entry.file("description.txt")), "what decides the contents\n");
}

TEST(IndexCache, NeedsNoWritableFolderOnceItIsThere) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const Cache cache;
  cache.build_once();
  std::filesystem::permissions(cache.entry.folder(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_FALSE(cache.build_once());
  std::filesystem::permissions(cache.entry.folder(), std::filesystem::perms::owner_all);
}

TEST(IndexCache, NamesTheFolderThatCannotBeWritten) {
  TemporaryFolder folder;
  write_bytes(folder / "file", "");
  const CacheEntry entry(folder / "file/cache", "Test", "");
  try {
    build_once(entry, {"a.npy"}, [] {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(folder / "file"), HasSubstr("--data-cache-path")));
  }
}

}  // namespace
}  // namespace megatron::data
