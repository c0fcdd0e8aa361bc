#include "megatron/base/files/atomic_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "tests/testing/temporary_folder.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(AtomicFolder, IsThereWholeAndLeavesNothingBeside) {
  const TemporaryFolder place;
  {
    AtomicFolder output(place.path() / "model");
    write_file(output.temporary_path() / "weights", "1");
    EXPECT_FALSE(fs::exists(place.path() / "model"));
    output.commit();
  }
  EXPECT_THAT(names_in(place.path()), ElementsAre("model"));
  EXPECT_EQ(read_file(place.path() / "model" / "weights"), "1");
  { const AtomicFolder abandoned(place.path() / "other"); }
  EXPECT_THAT(names_in(place.path()), ElementsAre("model"));
}

TEST(AtomicFolder, IsMadeByOneAtATime) {
  const TemporaryFolder place;
  const fs::path path = place.path() / "model";
  {
    AtomicFolder first(path);
    EXPECT_THAT([&] { const AtomicFolder second(path); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("one job at a time"), HasSubstr(path.string()))));
    const AtomicFolder other(place.path() / "model2");  // of another name
    first.commit();
  }
  EXPECT_NO_THROW({ const AtomicFolder late(path); }) << "an empty folder is taken over";
}

TEST(AtomicFolder, RemovesWhatAKilledProgramHasLeftOfTheSameName) {
  const TemporaryFolder place;
  const fs::path left = place.path() / ".tmp-model-4000000-0";
  make_folder(left / "part");
  write_file(place.path() / ".tmp-model-lock", left.filename().string());
  const std::set<std::string> others = {".tmp-model-2-4000000-0", ".tmp-model-notes", ".tmp-model2-4000000-0",
                                        ".tmp-model-4000001-0"};
  for (const std::string& name : others) make_folder(place.path() / name);
  { const AtomicFolder output(place.path() / "model"); }
  EXPECT_EQ(names_in(place.path()), others);
}

// As a program does that is killed.
TEST(AtomicFolder, RemembersItsTemporaryFolderWhereTheNextOneLooks) {
  const TemporaryFolder place;
  const AtomicFolder output(place.path() / "model");
  EXPECT_EQ(read_file(place.path() / ".tmp-model-lock"), output.temporary_path().filename().string());
}

TEST(AtomicFolder, RemovesNothingThatALockOfAnotherContentNames) {
  const TemporaryFolder place;
  make_folder(place.path() / "mine");
  write_file(place.path() / ".tmp-model-lock", "mine");
  { const AtomicFolder output(place.path() / "model"); }
  EXPECT_THAT(names_in(place.path()), ElementsAre("mine"));
}

TEST(AtomicFolder, SaysThatItsNameWasTakenMeanwhile) {
  const TemporaryFolder place;
  AtomicFolder output(place.path() / "model");
  make_folder(place.path() / "model");
  write_file(place.path() / "model" / "notes", "mine");
  EXPECT_THAT([&] { output.commit(); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("must not exist, or be empty"), HasSubstr("got:  "),
                                                      HasSubstr("not empty"), HasSubstr("fix:  "))));
  EXPECT_THAT(names_in(place.path() / "model"), ElementsAre("notes"));
}

}  // namespace
}  // namespace megatron
