#include "megatron/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace megatron {
namespace {

TEST(RuleGotFix, KeepsWordsOfUsualLength) {
  const std::string path(255, 'p');
  EXPECT_EQ(rule_got_fix("A rule.", "two words, " + path, "a fix"),
            "A rule.\n  got:  two words, " + path + "\n  fix:  a fix");
  EXPECT_EQ(rule_got_fix("A rule.", ""), "A rule.\n  got:  ");
}

TEST(RuleGotFix, OfALongWordShowsBothEndsAndTheSize) {
  const std::string middle(10000, 'm');
  EXPECT_EQ(
      rule_got_fix("A rule.", "rank 1: " + std::string(100, 'a') + middle + std::string(100, 'z') + ":\nrank 2: x"),
      "A rule.\n  got:  rank 1: " + std::string(100, 'a') + "…(10200 bytes)…" + std::string(100, 'z') + ":\nrank 2: x");
}

TEST(RuleGotFix, CutsBetweenCharacters) {
  std::string word = "a";
  for (int i = 0; i < 100; ++i) word += "\u20ac";  // 3 bytes each
  std::string head = "a", tail;
  for (int i = 0; i < 33; ++i) head += "\u20ac", tail += "\u20ac";
  EXPECT_EQ(rule_got_fix("A rule.", word), "A rule.\n  got:  " + head + "…(301 bytes)…" + tail);
}

}  // namespace
}  // namespace megatron
