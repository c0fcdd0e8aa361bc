#include "megatron/text/characters/token_index.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace megatron::text {
namespace {

TEST(TokenIndex, FindsWhatAMapFindsWhetherThereIsRoomForItOrNot) {
  std::mt19937 random(7);
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (auto n = random() % 4; n-- > 0;) text.push_back(static_cast<char>('a' + random() % 12));
    texts.push_back(text);
  }
  for (const std::size_t room : {0, 1, 3000}) {
    TokenIndex index;
    if (room > 0) index.reserve(room);
    std::unordered_map<std::string_view, std::int32_t> map;
    for (std::size_t i = 0; i < texts.size(); i += 2) {
      const auto id = static_cast<std::int32_t>(i);
      const auto [found, is_new] = index.emplace(texts[i], id);
      const auto [expected, expected_new] = map.emplace(texts[i], id);
      ASSERT_EQ(is_new, expected_new) << texts[i];
      ASSERT_EQ(*found, expected->second) << texts[i];
    }
    for (const std::string& text : texts)
      ASSERT_EQ(index.find(text), map.contains(text) ? map.at(text) : -1) << text << " with room for " << room;
  }
  EXPECT_EQ(TokenIndex().find("a"), -1);
}

}  // namespace
}  // namespace megatron::text
