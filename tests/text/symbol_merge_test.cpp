#include "megatron/text/models/symbol_merge.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "megatron/text/tokenizer.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {
namespace {

TEST(PairQueue, GivesTheLeftmostPlaceOfTheLowestRank) {
  std::mt19937 random(2);
  PairQueue queue;
  for (int round = 0; round < 50; ++round) {
    const std::uint32_t ranks = 1 + random() % 20;
    queue.reset(ranks);
    std::multiset<std::pair<std::uint32_t, std::uint32_t>> expected;
    std::uint32_t rank = 0, place = 0;
    for (int step = 0; step < 20000; ++step) {
      if (random() % 100 < (step < 8000 ? 60u : 40u)) {
        rank = static_cast<std::uint32_t>(random() % ranks);
        place = random() % 4 == 0 ? static_cast<std::uint32_t>(random() % 1000) : static_cast<std::uint32_t>(step);
        queue.add(rank, place);
        expected.emplace(rank, place);
      } else if (queue.take(rank, place)) {
        ASSERT_EQ(std::pair(rank, place), *expected.begin());
        expected.erase(expected.begin());
      } else {
        ASSERT_TRUE(expected.empty());
      }
    }  // what is left must not come back
  }
}

using Ids = std::vector<std::int32_t>;

/// What a pair of ids becomes: few ranks, so that many are equal, and lower ones come after higher ones.
SymbolPair pair_of(std::int32_t left, std::int32_t right, std::uint32_t seed) {
  const std::uint32_t mixed =
      (static_cast<std::uint32_t>(left) * 31u + static_cast<std::uint32_t>(right) + seed) * 0x9E3779B1u;
  if (mixed % 3 == 0) return {};
  return {(mixed >> 8) % 7, static_cast<std::int32_t>((mixed >> 16) % 9)};
}

/// Merges again and again what the definition names.
Ids merged_slowly(Ids ids, std::uint32_t seed) {
  for (;;) {
    SymbolPair best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const SymbolPair pair = pair_of(ids[i], ids[i + 1], seed);
      if (pair.id >= 0 && (best.id < 0 || pair.rank < best.rank)) best = pair, at = i;
    }
    if (best.id < 0) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(SymbolMerge, TakesTheSmallestRankAndOfEqualsTheLeftmost) {
  std::mt19937 random(3);
  MergeRoom room;
  for (std::uint32_t round = 0; round < 2000; ++round) {
    Ids ids(random() % (round % 10 == 0 ? 400 : 60));
    std::vector<Symbol> symbols;
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(random() % 4);
      const auto begin = static_cast<std::uint32_t>(symbols.size());
      symbols.push_back({.id = id, .begin = begin, .end = begin + 1});
    }
    merge_symbols(symbols, room, 7, [&](const Symbol& a, const Symbol& b) { return pair_of(a.id, b.id, round); });
    Ids merged;
    std::uint32_t end = 0;
    for (const Symbol& symbol : symbols) {
      merged.push_back(symbol.id);
      ASSERT_EQ(std::exchange(end, symbol.end), symbol.begin);
    }
    ASSERT_EQ(end, ids.size());
    ASSERT_EQ(merged, merged_slowly(ids, round)) << round;
  }
}

TEST(SymbolMerge, OfATextThatSaysTheSameAgainAndAgainGivesTheSame) {
  std::mt19937 random(5);
  MergeRoom room;
  for (std::uint32_t round = 0; round < 600; ++round) {
    Ids cycle(1 + random() % 4), ids;
    for (std::int32_t& id : cycle) id = static_cast<std::int32_t>(random() % 4);
    while (ids.size() < 100 + round % 50) ids.insert(ids.end(), cycle.begin(), cycle.end());
    std::vector<Symbol> symbols;
    for (const std::int32_t id : ids) symbols.push_back({.id = id});
    merge_symbols(symbols, room, 7, [&](const Symbol& a, const Symbol& b) { return pair_of(a.id, b.id, round); });
    Ids merged;
    for (const Symbol& symbol : symbols) merged.push_back(symbol.id);
    ASSERT_EQ(merged, merged_slowly(ids, round)) << round;
  }
}

TEST(SymbolMerge, OfManyEqualPairsWithLowerRanksBehindThemStaysFast) {
  // Each "ab" makes "abc" possible, which goes before the other "ab".
  std::vector<Symbol> symbols(300000);
  for (std::uint32_t i = 0; i < symbols.size(); ++i)
    symbols[i] = {.id = static_cast<std::int32_t>(i % 3), .begin = i, .end = i + 1};
  MergeRoom room;
  merge_symbols(symbols, room, 2, [](const Symbol& a, const Symbol& b) -> SymbolPair {
    if (a.id == 0 && b.id == 1) return {1, 3};
    if (a.id == 3 && b.id == 2) return {0, 4};
    return {};
  });
  ASSERT_EQ(symbols.size(), 100000u);
  for (const Symbol& symbol : symbols) ASSERT_EQ(symbol.id, 4);
}

TEST(SymbolMerge, OfBytesStaysFastToo) {
  Vocabulary vocabulary;
  vocabulary.tokens = {"a", "b", "c", "ab", "abc"};
  vocabulary.merges = {{3, 2}, {0, 1}};
  const Tokenizer tokenizer(std::move(vocabulary));
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "abc";
  EXPECT_EQ(tokenizer.encode(text), Ids(100000, 4));
}

}  // namespace
}  // namespace megatron::text
