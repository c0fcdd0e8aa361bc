#include "megatron/generate/stream.h"

#include <gmock/gmock.h>

#include <vector>

namespace megatron::generate {
namespace {

std::vector<std::string> pass(const std::vector<std::string>& pieces) {
  std::vector<std::string> out;
  Utf8Stream stream([&](std::string_view text) { out.emplace_back(text); });
  for (const auto& piece : pieces) stream.write(piece);
  stream.finish();
  return out;
}

TEST(Utf8Stream, HoldsAPartialCharacterUntilItIsWhole) {
  EXPECT_THAT(pass({"a\xC3", "\xA9", "b"}), ::testing::ElementsAre("a", "\xC3\xA9", "b"));
  EXPECT_THAT(pass({"\xF0", "\x9F", "\x98", "\x80!"}), ::testing::ElementsAre("\xF0\x9F\x98\x80!"));
  EXPECT_THAT(pass({"\xE2\x82", "\xAC\xE2"}), ::testing::ElementsAre("\xE2\x82\xAC", "\xE2"));
}

TEST(Utf8Stream, PassesOnWhatCannotBecomeACharacter) {
  EXPECT_THAT(pass({"\x80\x80\x80\x80", "x"}), ::testing::ElementsAre("\x80\x80\x80\x80", "x"));
  EXPECT_THAT(pass({"\xC3", "z"}), ::testing::ElementsAre("\xC3z"));
}

}  // namespace
}  // namespace megatron::generate
