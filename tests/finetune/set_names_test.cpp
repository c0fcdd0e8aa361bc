#include "megatron/finetune/set_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron::finetune {
namespace {

using ::testing::ElementsAre;

TEST(SetNames, AreThoseOfTheFiles) {
  EXPECT_THAT(set_names({"glue/MNLI/dev_matched.tsv", "glue/MNLI/dev_mismatched.tsv", "RACE/test/"}),
              ElementsAre("dev_matched", "dev_mismatched", "test"));
  EXPECT_THAT(set_names({"dev-v1.1.json"}), ElementsAre("dev-v1.1"));
}

TEST(SetNames, TellEqualFilesApart) {
  EXPECT_THAT(set_names({"a/dev.tsv", "b/dev.tsv", "b/dev.tsv", "dev.tsv", "other.tsv"}),
              ElementsAre("a_dev", "b_dev", "b_dev_2", "dev", "other"));
}

TEST(SetNames, AreNamesOfFoldersWhateverTheFilesAreCalled) {
  EXPECT_THAT(set_names({"a|b\n.tsv"}), ElementsAre("a_b_"));
  for (const char* path : {"", ".", "..", "/", "...", ".tsv", "a/../..", "\xff\xfe", "../", " "}) {
    const std::string name = set_names({path}).at(0);
    EXPECT_FALSE(name.empty());
    EXPECT_NE(name[0], '.') << path;
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_."), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace megatron::finetune
