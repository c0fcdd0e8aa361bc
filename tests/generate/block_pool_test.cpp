#include "megatron/generate/serving/block_pool.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

namespace megatron::generate {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using Ids = std::vector<std::int64_t>;

TEST(BlockPool, GivesPrefixesUpFromTheirEndsTheOneReleasedLongestAgoFirst) {
  BlockPool pool(6, 2, 2);
  const auto add = [&](BlockPool::Prefix* held, const Ids& unit) { return pool.add(held, unit, pool.take(1)); };
  auto* const a = add(nullptr, {1, 1});
  auto* const ab = add(a, {2, 2});
  auto* const other = add(nullptr, {3, 3});
  pool.release(ab);
  pool.release(other);
  EXPECT_EQ(pool.kept(), 3);
  EXPECT_EQ(pool.find(Ids{1, 1, 2, 2, 9}), ab);
  EXPECT_EQ(pool.find(Ids{1, 1, 2}), a);
  EXPECT_EQ(pool.find(Ids{2, 2}), nullptr);
  EXPECT_THAT(ab->blocks(), ElementsAre(0, 1));
  const Ids four = pool.take(4);  // the three that are free, and the one at the end of ab
  EXPECT_THAT(four, UnorderedElementsAre(1, 3, 4, 5));
  EXPECT_EQ(pool.find(Ids{1, 1, 2, 2}), a);
  pool.hold(a);
  EXPECT_EQ(pool.kept(), 1);
  EXPECT_TRUE(pool.has(1));
  EXPECT_FALSE(pool.has(2));
  EXPECT_THROW(pool.take(2), std::logic_error);
  EXPECT_THAT(pool.take(1), ElementsAre(2));
  EXPECT_EQ(pool.find(Ids{3, 3}), nullptr);
  EXPECT_EQ(pool.find(Ids{1, 1}), a);
  EXPECT_THROW(BlockPool(4, 4, 6), std::logic_error);
}

// What a model with an adapter makes of tokens is not what it makes of them with another.
TEST(BlockPool, TextsOfOtherAdaptersHavePrefixesOfTheirOwn) {
  BlockPool pool(6, 2, 2);
  auto* const base = pool.add(nullptr, Ids{1, 1}, pool.take(1));
  EXPECT_EQ(pool.find(Ids{1, 1}, 1), nullptr);
  auto* const adapted = pool.add(nullptr, Ids{1, 1}, pool.take(1), 1);
  auto* const longer = pool.add(adapted, Ids{2, 2}, pool.take(1), 1);
  EXPECT_EQ(pool.find(Ids{1, 1, 2, 2}), base);
  EXPECT_EQ(pool.find(Ids{1, 1, 2, 2}, 1), longer);
  EXPECT_EQ(pool.find(Ids{1, 1, 2, 2}, 2), nullptr);
  EXPECT_THAT(base->blocks(), ElementsAre(0));
  EXPECT_THAT(longer->blocks(), ElementsAre(1, 2));
  pool.release(base);
  pool.release(longer);
  EXPECT_EQ(pool.kept(), 3);
  EXPECT_EQ(pool.take(6).size(), 6);
  EXPECT_EQ(pool.find(Ids{1, 1}, 1), nullptr);
}

/// What a text has.
struct Holder {
  BlockPool::Prefix* prefix = nullptr;
  Ids prompt, blocks;
};

// Texts that come and go at random; whoever has a block is written down beside.
TEST(BlockPool, GivesNoBlockToTwo) {
  std::mt19937 random(3);
  BlockPool pool(40, 2, 4);
  std::vector<Holder> texts;
  std::int64_t found = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    if (random() % 2 == 0 && !texts.empty()) {
      const auto text = texts.begin() + static_cast<std::ptrdiff_t>(random() % texts.size());
      const std::int64_t shared = text->prefix == nullptr ? 0 : text->prefix->units() * pool.unit_blocks();
      pool.give_back({text->blocks.begin() + shared, text->blocks.end()});
      pool.release(text->prefix);
      texts.erase(text);
    } else {
      Holder text;
      for (std::size_t units = 1 + random() % 3; units-- > 0;) text.prompt.insert(text.prompt.end(), 4, random() % 3);
      text.prompt.push_back(9);
      text.prefix = pool.find(text.prompt);
      pool.hold(text.prefix);
      if (text.prefix != nullptr) {
        text.blocks = text.prefix->blocks();
        ++found;
      }
      const std::int64_t more = pool.blocks_of(std::ssize(text.prompt)) - std::ssize(text.blocks);
      if (!pool.has(more)) {
        pool.release(text.prefix);
        ++refused;
        continue;
      }
      for (const std::int64_t block : pool.take(more)) text.blocks.push_back(block);
      while (true) {
        const std::int64_t units = text.prefix == nullptr ? 0 : text.prefix->units();
        if (units * 4 + 4 > std::ssize(text.prompt)) break;
        const auto tokens = text.prompt.begin() + units * 4, blocks = text.blocks.begin() + units * 2;
        auto* const longer = pool.add(text.prefix, {tokens, tokens + 4}, {blocks, blocks + 2});
        if (longer == nullptr) break;
        text.prefix = longer;
      }
      texts.push_back(text);
    }
    std::map<std::int64_t, Ids> owner;  // of each block, the tokens up to its end, or who has it alone
    std::int64_t alone = -1;
    for (const Holder& text : texts) {
      const std::int64_t shared = text.prefix == nullptr ? 0 : text.prefix->units() * pool.unit_blocks();
      --alone;
      for (std::int64_t i = 0; i < std::ssize(text.blocks); ++i) {
        const Ids who = i < shared ? Ids(text.prompt.begin(), text.prompt.begin() + 2 * i + 2) : Ids{alone};
        const auto [place, is_new] = owner.try_emplace(text.blocks[static_cast<std::size_t>(i)], who);
        ASSERT_TRUE(is_new || (place->second == who && i < shared)) << "round " << round;
      }
    }
    ASSERT_EQ(pool.free() + pool.kept() + std::ssize(owner), pool.size()) << "round " << round;
  }
  EXPECT_GT(found, 300);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace megatron::generate
