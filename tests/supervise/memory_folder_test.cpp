#include "megatron/supervise/memory_folder.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::supervise {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal_of(const fs::path& folder) {
  try {
    make_memory_folder(folder);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(MemoryFolder, IsThisUsersAlone) {
  const TemporaryFolder parent;
  const fs::path own = parent.path() / "own";
  make_memory_folder(own);
  struct stat found = {};
  ASSERT_EQ(::stat(own.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  make_memory_folder(own);  // after a restart
  ASSERT_EQ(::chmod(own.c_str(), 0755), 0);
  EXPECT_THAT(refusal_of(own), HasSubstr("others may enter"));
  fs::create_directory(parent.path() / "elsewhere");
  fs::create_directory_symlink(parent.path() / "elsewhere", parent.path() / "link");
  EXPECT_THAT(refusal_of(parent.path() / "link"), HasSubstr("a link"));
  write_file(parent.path() / "file", "");
  EXPECT_THAT(refusal_of(parent.path() / "file"), HasSubstr("no folder"));
  EXPECT_THAT(refusal_of(parent.path() / "missing" / "own"), HasSubstr("--checkpoint.memory_folder"));
  if (::geteuid() == 0) {  // no other user can give us a folder
    fs::create_directory(parent.path() / "theirs");
    ASSERT_EQ(::chmod((parent.path() / "theirs").c_str(), 0700), 0);
    ASSERT_EQ(::chown((parent.path() / "theirs").c_str(), 12345, 12345), 0);
    EXPECT_THAT(refusal_of(parent.path() / "theirs"), HasSubstr("a folder of user 12345"));
  }
}

TEST(MemoryFolder, IsKnownByARunThatIsNotStartedOver) {
  const TemporaryFolder place;
  const fs::path checkpoints = place.path() / "checkpoints", parent = place.path() / "memory";
  fs::create_directory(parent);
  EXPECT_EQ(memory_run(checkpoints), std::nullopt);
  EXPECT_EQ(newest_in_memory(parent, checkpoints), std::nullopt);
  const MemoryRun found = make_memory_run(checkpoints);
  const std::string run = found.run;
  EXPECT_EQ(run.size(), 16u);
  EXPECT_EQ(make_memory_run(checkpoints), found);
  EXPECT_EQ(memory_run(checkpoints), found);
  const std::string later = begin_memory_time(checkpoints);
  EXPECT_NE(later, found.time);
  EXPECT_EQ(memory_run(checkpoints), (MemoryRun{.run = run, .time = later}));
  fs::rename(checkpoints, place.path() / "moved");
  EXPECT_EQ(memory_run(place.path() / "moved")->run, run);
  fs::copy(place.path() / "moved", checkpoints, fs::copy_options::recursive);
  EXPECT_EQ(memory_run(checkpoints), std::nullopt) << "a copy is another run";
  fs::remove_all(checkpoints);
  fs::rename(place.path() / "moved", checkpoints);
  const fs::path one = memory_folder(parent, run, "00000000000000aa"), other = memory_folder(parent, run, "bb");
  for (const fs::path& folder : {one, other, memory_folder(parent, std::string(16, '0'), "cc")}) {
    make_memory_folder(folder);
    write_file(folder / "latest", folder == one ? "iter_0000012\n" : "iter_0000009\n");
    write_file(folder / "data", "12345");
  }
  EXPECT_EQ(newest_in_memory(parent, checkpoints), 12);
  EXPECT_EQ(bytes_in_memory(parent, checkpoints), 2u * (13 + 5));
  remove_other_recipes(one);
  EXPECT_TRUE(fs::exists(one));
  EXPECT_FALSE(fs::exists(other)) << "another recipe of the run";
  EXPECT_TRUE(fs::exists(memory_folder(parent, std::string(16, '0'), "cc"))) << "another run";
  fs::remove_all(checkpoints);
  EXPECT_NE(make_memory_run(checkpoints).run, run) << "started over";
  EXPECT_EQ(newest_in_memory(parent, checkpoints), std::nullopt);
  write_file(checkpoints / ".memory_run", "../../somewhere\n");
  EXPECT_EQ(memory_run(checkpoints), std::nullopt);
}

}  // namespace
}  // namespace megatron::supervise
