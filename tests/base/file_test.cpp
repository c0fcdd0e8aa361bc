#include "megatron/base/files/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/base/files/mapped_faults.h"
#include "megatron/base/files/regular_file.h"
#include "megatron/base/files/write_error.h"
#include "tests/testing/temporary_folder.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  std::size_t files_in_folder() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

 private:
  const TemporaryFolder temporary_;

 protected:
  const fs::path folder_ = temporary_.path();
};

using MappedFileTest = FileTest;

TEST_F(MappedFileTest, APipeInPlaceOfAFileIsRefusedAtOnce) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto refused = [&](const auto& work) {
    try {
      work();
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refused([&] { MappedFile file(pipe); }), HasSubstr("must be a regular file"));
  EXPECT_THAT(refused([&] { read_file(pipe); }), HasSubstr("must be a regular file"));
  EXPECT_THAT(refused([&] { check_regular("/dev/null"); }), HasSubstr("must be a regular file"));
  EXPECT_TRUE(open_regular(pipe).is_other);
  EXPECT_EQ(open_regular(folder_ / "none").error, ENOENT);
}

TEST_F(MappedFileTest, OneThatIsCutOffIsNamedWithItsSizes) {
  const fs::path path = folder_ / "cut\x1b[2J.bin";
  write_file(path, std::string(3 << 20, 'x'));
  const auto read_after_cut = [&] {
    explain_mapped_faults();
    const MappedFile file(path);
    fs::resize_file(path, 100);
    std::_Exit(file.text()[2 << 20] == 'x' ? 2 : 3);
  };
  EXPECT_EXIT(read_after_cut(), testing::ExitedWithCode(1),
              "cut\\\\x1b\\[2J.bin: a file must stay as it is while it is read.\n  got:  cut off from 3145728 to 100 "
              "bytes meanwhile\n  fix:  ");
}

TEST_F(MappedFileTest, AFaultElsewhereKeepsItsSignal) {
  const auto fault = [&] {
    explain_mapped_faults();
    { const MappedFile file(folder_ / "gone"); }
    ::raise(SIGBUS);
    ::raise(SIGBUS);  // a fault would come again by itself
  };
  write_file(folder_ / "gone", "text");
  EXPECT_EXIT(fault(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FileTest, AWriteBeyondTheLimitOfTheShellSaysHowToRaiseIt) {
  const auto write = [&] {
    let_large_writes_fail();
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file(folder_ / "large", std::string(2 << 20, 'x'));
    } catch (const std::exception& e) {
      std::fputs(e.what(), stderr);
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(write(), testing::ExitedWithCode(7), "File too large.*\n  fix:  .*ulimit -f unlimited");
}

/// As the file system allows, and as where it has no files without a name.
class AtomicFileTest : public FileTest, public testing::WithParamInterface<AtomicFile::Until> {};
INSTANTIATE_TEST_SUITE_P(Before, AtomicFileTest, testing::Values(AtomicFile::Until::Unnamed, AtomicFile::Until::Named),
                         [](const auto& tested) {
                           return tested.param == AtomicFile::Until::Unnamed ? "CommitUnnamed" : "CommitNamed";
                         });

TEST_P(AtomicFileTest, AppearsWholeAtCommitAndNotBefore) {
  const fs::path path = folder_ / "out";
  std::string expected;
  {
    AtomicFile file(path, GetParam());
    for (int i = 0; i < 300000; ++i) {  // several buffers
      const std::string piece = std::to_string(i);
      file.write(piece);
      expected += piece;
    }
    const std::string large(3 << 20, 'x');  // larger than the buffer
    file.write(large);
    file.write_value(std::int32_t{0x64636261});
    expected += large + "abcd";
    EXPECT_FALSE(fs::exists(path));
    EXPECT_EQ(file.size(), expected.size());
    file.commit();
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_TRUE(read_file(path) == expected);
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_P(AtomicFileTest, LeavesNothingWithoutCommitAndKeepsTheOldFile) {
  const fs::path path = folder_ / "out";
  write_file(path, "old");
  {
    AtomicFile file(path, GetParam());
    file.write("new");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_P(AtomicFileTest, ReplacesTheOldFile) {
  const fs::path path = folder_ / "out";
  for (const char* text : {"old", "newer"}) {
    AtomicFile file(path, GetParam());
    file.write(text);
    file.commit();
    EXPECT_EQ(read_file(path), text);
    EXPECT_EQ(files_in_folder(), 1u);
  }
}

TEST_P(AtomicFileTest, LeavesNothingWhereItsNameIsAFolders) {
  EXPECT_THROW(check_replaceable(folder_), ConfigError);
  {
    AtomicFile file(folder_ / "out", GetParam());
    fs::create_directory(folder_ / "out");  // meanwhile
    EXPECT_THROW(file.commit(), std::runtime_error);
  }
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_P(AtomicFileTest, ReplacesNoPipeOrDevice) {
  const fs::path pipe = folder_ / "pipe", link = folder_ / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0666), 0);
  fs::create_symlink(pipe, link);
  const int open_file = open((folder_ / "open").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
  const fs::path descriptor = "/dev/fd/" + std::to_string(open_file);  // as /dev/stdout leads to what the shell opened
  for (const fs::path& path : {pipe, link, fs::path("/dev/null"), descriptor}) {
    try {
      AtomicFile file(path, GetParam());
      ADD_FAILURE() << path;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("whole or not at all"));
    }
  }
  close(open_file);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST_P(AtomicFileTest, WritesWhatALinkLeadsTo) {
  fs::create_directory(folder_ / "there");
  const fs::path target = folder_ / "there" / "out", link = folder_ / "link";
  fs::create_symlink("there/out", link);
  fs::create_symlink("link", folder_ / "again");
  for (const char* text : {"new", "newer"}) {  // the target is not there at first
    AtomicFile file(folder_ / "again", GetParam());
    file.write(text);
    file.commit();
    EXPECT_EQ(read_file(target), text);
    EXPECT_TRUE(fs::is_symlink(link));
  }
}

TEST_P(AtomicFileTest, KeepsTheModeOfWhatItReplaces) {
  const fs::path path = folder_ / "out";
  write_file(path, "old");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  AtomicFile file(path, GetParam());
  file.commit();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_P(AtomicFileTest, CanBeReadBeforeItIsCommitted) {
  AtomicFile file(folder_ / "out", GetParam());
  file.write("text");
  file.flush();
  EXPECT_EQ(MappedFile(file.temporary_path()).text(), "text");
}

/// Closes one end of the pipe when it has written; then waits to be killed.
[[noreturn]] void write_and_wait(const fs::path& path, int written) {
  AtomicFile file(path);
  file.write(std::string(3 << 20, 'x'));
  file.flush();
  close(written);
  while (true) pause();
}

TEST_F(FileTest, NothingIsLeftOfAnAtomicFileWhoseProgramWasKilled) {
  const int probe = open(folder_.c_str(), O_TMPFILE | O_RDWR, 0666);
  if (probe < 0) GTEST_SKIP() << folder_ << ": the file system has no files without a name";
  close(probe);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) write_and_wait(folder_ / "out", ends[1]);
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // the child has closed its end
  close(ends[0]);
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(files_in_folder(), 0u);
}

TEST_F(FileTest, MakesFoldersAndSaysWhichCannotBe) {
  make_folder(folder_ / "a" / "b");
  make_folder(folder_ / "a" / "b");
  make_folder("");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
  write_file(folder_ / "file", "");
  for (const fs::path& path : {folder_ / "file", folder_ / "file" / "below"}) try {
      make_folder(path, "another folder");
      ADD_FAILURE() << path;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(path.string()), HasSubstr("another folder")));
    }
}

TEST_P(AtomicFileTest, CanBeWrittenTwiceAtOnce) {
  const fs::path path = folder_ / "out";
  AtomicFile first(path, GetParam()), second(path, GetParam());
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  EXPECT_EQ(read_file(path), "first");
}

TEST_P(AtomicFileTest, NamesAFolderThatIsNotThere) {
  try {
    AtomicFile file(folder_ / "none" / "out", GetParam());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("none/out"));
  }
}

TEST_P(AtomicFileTest, FailsAndLeavesNothingWhenTheFileCannotGrow) {
  struct rlimit old {};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {.rlim_cur = 4096, .rlim_max = old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_file(folder_ / "out", std::string(1 << 16, 'x')), std::runtime_error);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(files_in_folder(), 0u);
}

TEST_F(MappedFileTest, ReadsValuesAtAnyOffset) {
  write_file(folder_ / "in", std::string("\0\x01\x02\x03\x04\x05\x06\x07\x08", 9));
  const MappedFile file(folder_ / "in");
  EXPECT_EQ(file.size(), 9u);
  EXPECT_EQ(file.read<std::uint64_t>(1, "number"), 0x0807060504030201u);
  EXPECT_EQ(file.read<std::uint8_t>(8, "byte"), 8);
  EXPECT_EQ(file.range(9, 0, 8, "nothing").size(), 0u);
  EXPECT_EQ(file.text().substr(1, 2), "\x01\x02");
}

TEST_F(MappedFileTest, RefusesRangesOutsideTheFile) {
  write_file(folder_ / "in", "0123456789");
  const MappedFile file(folder_ / "in");
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [offset, count, size] : std::vector<std::array<std::uint64_t, 3>>{{0, 11, 1},
                                                                                     {3, 8, 1},
                                                                                     {11, 0, 1},
                                                                                     {8, 1, 4},
                                                                                     {0, kMax, 8},
                                                                                     {0, kMax / 8 + 2, 8},
                                                                                     {kMax, 1, 1},
                                                                                     {10, kMax, 2}})
    EXPECT_THROW(file.range(offset, count, size, "part"), ConfigError) << offset << " " << count << " " << size;
  try {
    file.read<std::uint64_t>(7, "the header");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("/in"), HasSubstr("the header"), HasSubstr("at byte 7"),
                                             HasSubstr("of 10 bytes")));
  }
}

TEST_F(MappedFileTest, MapsAnEmptyFileToNothing) {
  write_file(folder_ / "in", "");
  const MappedFile file(folder_ / "in");
  EXPECT_EQ(file.size(), 0u);
  EXPECT_THROW(file.read<char>(0, "byte"), ConfigError);
}

TEST_F(MappedFileTest, MovesItsMapping) {
  write_file(folder_ / "in", "abc");
  MappedFile file(folder_ / "in");
  MappedFile moved(std::move(file));
  EXPECT_EQ(moved.text(), "abc");
  file = std::move(moved);
  EXPECT_EQ(file.text(), "abc");
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_THROW(MappedFile(folder_ / "none"), ConfigError);
  EXPECT_THROW(MappedFile{folder_}, ConfigError);
  EXPECT_THROW(MappedFile("/dev/zero"), ConfigError);
  EXPECT_THROW(read_file("/dev/zero"), ConfigError);
}

TEST_F(FileTest, ReadFileRefusesMoreThanItsLimit) {
  write_file(folder_ / "in", "0123456789");
  EXPECT_EQ(read_file(folder_ / "in", 10), "0123456789");
  EXPECT_THROW(read_file(folder_ / "in", 9), ConfigError);
}

}  // namespace
}  // namespace megatron
