#include <gtest/gtest.h>

#include "tests/text/support.h"

namespace megatron::text {
namespace {

TEST(EncodeBatch, GivesEachTextTheIdsThatItHasAloneInOrder) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  std::mt19937 random(11);
  std::vector<std::string> texts(700);
  for (std::string& text : texts) text = random_text(random, 40) + (random() % 4 == 0 ? "<|endoftext|>" : "");
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (const Specials specials : {Specials::AsText, Specials::Recognised}) {
    std::vector<std::vector<std::int32_t>> expected;
    for (const std::string& text : texts) expected.push_back(tokenizer.encode(text, specials));
    for (const int threads : {0, 1, 2, 5}) EXPECT_EQ(tokenizer.encode_batch(views, threads, specials), expected);
    // Fewer texts than threads.
    EXPECT_EQ(tokenizer.encode_batch(std::span(views).first(2), 8, specials), (std::vector{expected[0], expected[1]}));
  }
  EXPECT_TRUE(tokenizer.encode_batch({}, 4).empty());
}

}  // namespace
}  // namespace megatron::text
