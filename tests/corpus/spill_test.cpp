#include "megatron/corpus/spill.h"

#include <gtest/gtest.h>

#include "megatron/corpus/dedup/shingle_sets.h"
#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

std::vector<std::uint64_t> read_all(const SortedValues& values) {
  std::vector<std::uint64_t> result;
  SortedValues::Reader reader(values);
  for (std::uint64_t value = 0; reader.next(value);) result.push_back(value);
  return result;
}

TEST(SortedValues, ComeInTheSameOrderHoweverFewFitIntoMemory) {
  TemporaryFolder folder;
  std::mt19937 engine(1);
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < 30000; ++i)  // keys that repeat, also far apart; some differ in the highest bits alone
    values.push_back((static_cast<std::uint64_t>(engine() % 2000) * (i % 3 == 0 ? 1 << 21 : 1)) << 32 | i / 2);
  auto expected = values;
  std::stable_sort(expected.begin(), expected.end(), [](auto a, auto b) { return a >> 32 < b >> 32; });
  for (const std::size_t most : {1u << 20, 30000u, 29999u, 1000u, 37u}) {
    SortedValues sorted(folder.path(), most);
    for (const std::uint64_t value : values) sorted.add(value);
    std::vector<std::uint64_t> scratch;
    sorted.finish(scratch);
    EXPECT_EQ(sorted.size(), 30000);
    EXPECT_EQ(sorted.is_spilled(), most < 30000) << most;
    EXPECT_EQ(read_all(sorted), expected) << most;
    EXPECT_EQ(read_all(sorted), expected) << "a second time";
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "temporary files have no names";
}

TEST(SortedValues, MayBeNone) {
  SortedValues none(".", 10);
  std::vector<std::uint64_t> scratch;
  none.finish(scratch);
  EXPECT_TRUE(read_all(none).empty());
}

TEST(SpillFile, RefusesAFolderThatIsNotThere) { EXPECT_THROW(SpillFile("/nowhere/at/all"), ConfigError); }

TEST(ShingleSets, AreGivenBackFromMemoryAndFromDisk) {
  TemporaryFolder folder;
  std::mt19937_64 engine(2);
  std::vector<std::vector<std::uint64_t>> expected;
  for (std::size_t i = 0; i < 200; ++i) {
    expected.emplace_back(engine() % 50);
    for (auto& value : expected.back()) value = engine();
    make_set(expected.back());
  }
  for (const std::size_t bytes : {1u << 20, 5000u, 0u}) {
    ShingleSets sets(folder.path(), bytes);
    for (const auto& set : expected) sets.add(set);
    sets.finish();
    EXPECT_EQ(sets.size(), 200u);
    EXPECT_EQ(sets.is_spilled(), bytes < 1u << 20);
    std::vector<std::uint64_t> buffer;
    for (std::size_t i = 200; i-- > 0;) {
      const auto set = sets.get(i, buffer);
      EXPECT_EQ(std::vector(set.begin(), set.end()), expected[i]) << i << " with " << bytes;
    }
  }
}

TEST(Jaccard, IsThatOfSetsCountedTheSlowWay) {
  std::mt19937_64 engine(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint64_t> a(engine() % 120), b(engine() % 120);
    for (auto* set : {&a, &b}) {
      for (auto& value : *set) value = engine() % (20 + 10 * static_cast<std::uint64_t>(round % 20));
      make_set(*set);
    }
    std::set<std::string> x, y;
    for (const auto value : a) x.insert(std::to_string(value));
    for (const auto value : b) y.insert(std::to_string(value));
    const double expected = naive_jaccard(x, y);
    EXPECT_EQ(jaccard(a, b), expected);
    for (const double threshold : {0.1, 0.3, 0.5, 0.7, 1.0, expected})
      if (threshold > 0) {
        EXPECT_EQ(similar(a, b, threshold), !a.empty() && !b.empty() && expected >= threshold) << expected;
      }
  }
  EXPECT_EQ(jaccard({}, {}), 0);
}

}  // namespace
}  // namespace megatron::corpus
