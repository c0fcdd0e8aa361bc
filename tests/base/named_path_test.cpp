#include "megatron/base/named_path.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/testing/temporary_folder.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

TEST(NamedPath, IsSaidWithWhatIsThere) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "run";
  EXPECT_EQ(place_text(folder), folder.string() + ", which does not exist");
  fs::create_directory(folder);
  EXPECT_EQ(place_text(folder), folder.string() + ", an empty folder");
  for (const char* name : {"c", "a", "b"}) std::ofstream(folder / name) << name;
  EXPECT_EQ(place_text(folder), folder.string() + ", which holds a, b, c");
  for (const char* name : {"e", "d"}) std::ofstream(folder / name) << name;
  EXPECT_EQ(place_text(folder), folder.string() + ", which holds a, b, c and 2 more");
  EXPECT_EQ(place_text(folder / "a"), (folder / "a").string() + ", a file");
  EXPECT_EQ(place_text(folder / "a" / "b"), (folder / "a" / "b").string() + ", which does not exist");
}

TEST(NamedPath, HasANeighbourOfNearlyThatName) {
  const TemporaryFolder temporary;
  fs::create_directory(temporary.path() / "pretrained");
  fs::create_directory(temporary.path() / "other");
  const std::string wanted = (temporary.path() / "pretrained").string();
  EXPECT_EQ(nearest_beside(temporary.path() / "pretraind"), wanted);
  EXPECT_EQ(nearest_beside(temporary.path() / "pretraind" / ""), wanted);
  EXPECT_EQ(nearest_beside(temporary.path() / "nothing-like-it"), "");
  EXPECT_EQ(nearest_beside(temporary.path() / "absent" / "pretrained"), "");
  EXPECT_EQ(nearest_beside("no-such-word-anywhere"), "");
}

}  // namespace
}  // namespace megatron
