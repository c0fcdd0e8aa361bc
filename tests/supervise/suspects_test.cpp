#include "megatron/supervise/suspects.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

namespace megatron::supervise {
namespace {

/// A step of `ranks` copies of a model, rank `faulty` of which computes wrongly in the passes whose bits `wrong` has:
/// always the same (`steady`), or each time something else. Passes are those of train::run_checked().
struct Trial {
  int ranks, faulty;
  unsigned wrong;
  bool steady;

  std::vector<int> passes() const {
    if (ranks == 1) return {0, 0, 0, 0, 0};
    return ranks == 2 ? std::vector<int>{1, 0, 0, 1, 0} : std::vector<int>{1, 0, 0, 1, 2, 0};
  }
  std::vector<PartResult> results(std::size_t count) const {
    std::vector<PartResult> all;
    const std::vector<int> places = passes();
    for (std::size_t pass = 0; pass < count; ++pass)
      for (int rank = 0; rank < ranks; ++rank) {
        const int part = (rank + places[pass]) % ranks;
        const bool errs = rank == faulty && (wrong >> pass & 1U) != 0;
        const auto right = static_cast<std::uint64_t>(1000 * (part + 1));
        all.push_back({rank, part, errs ? right + 1 + (steady ? 0 : pass) : right});
      }
    return all;
  }
  /// How many passes with this number of places are wrong.
  int wrong_of(const std::set<int>& of) const {
    const std::vector<int> places = passes();
    int count = 0;
    for (std::size_t pass = 0; pass < places.size(); ++pass)
      count += static_cast<int>(of.contains(places[pass]) && (wrong >> pass & 1U) != 0);
    return count;
  }
};

void for_each_trial(const std::function<void(const Trial&)>& visit) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int faulty = 0; faulty < ranks; ++faulty)
      for (const bool steady : {false, true}) {
        const std::size_t passes = Trial{ranks, faulty, 0, steady}.passes().size();
        for (unsigned wrong = 0; wrong < 1U << passes; ++wrong) visit({ranks, faulty, wrong, steady});
      }
}

TEST(Suspects, ErrorsOfTheFirstTwoPassesShow) {
  for_each_trial([](const Trial& trial) {
    const unsigned first = trial.wrong & 3U;
    const bool hidden = first == 0 || (trial.ranks == 1 && trial.steady && first == 3);
    ASSERT_EQ(agree(trial.results(2)), hidden) << trial.ranks << " " << trial.wrong;
  });
}

TEST(Suspects, OfThreeCopiesTheWrongOneIsNamedAlone) {
  for_each_trial([](const Trial& trial) {
    const std::size_t passes = trial.passes().size();
    if (trial.ranks < 3 || trial.wrong == 0) return;
    const auto suspects = suspects_of(trial.results(passes));
    ASSERT_EQ(suspects.size(), 1u) << trial.ranks << " " << trial.wrong;
    const int count = trial.wrong_of({0, 1, 2});
    EXPECT_EQ(suspects[0].rank, trial.faulty);
    EXPECT_TRUE(suspects[0].certain);
    EXPECT_EQ(suspects[0].wrong, count);
    EXPECT_EQ(suspects[0].results, 6);
    EXPECT_EQ(suspects[0].persistent, count > 1 || (trial.wrong >> (passes - 1)) != 0) << "the last pass is in use";
    EXPECT_NE(suspects[0].checksum % 1000, 0u);
    EXPECT_EQ(suspects[0].expected.value() % 1000, 0u);
  });
}

TEST(Suspects, OfTwoCopiesTheOtherIsSuspectedWhereNobodyCanTell) {
  for_each_trial([](const Trial& trial) {
    if (trial.ranks != 2 || trial.wrong == 0) return;
    const auto suspects = suspects_of(trial.results(5));
    const auto of = [&](int rank) { return std::ranges::find(suspects, rank, &Suspect::rank); };
    const auto faulty = of(trial.faulty), other = of(1 - trial.faulty);
    ASSERT_NE(faulty, suspects.end()) << trial.wrong;
    const bool undecided = trial.steady && (trial.wrong_of({0}) == 3 || trial.wrong_of({1}) == 2);
    ASSERT_EQ(other != suspects.end(), undecided) << trial.wrong;
    if (!undecided) {
      EXPECT_TRUE(faulty->certain) << trial.wrong;
      EXPECT_TRUE(faulty->persistent || trial.wrong_of({0, 1}) == 1) << trial.wrong;
      return;
    }
    EXPECT_FALSE(other->certain);
    EXPECT_TRUE(other->persistent && faulty->persistent) << "the run must not continue";
  });
}

TEST(Suspects, ARankAloneIsComparedWithItself) {
  for_each_trial([](const Trial& trial) {
    const int count = trial.wrong_of({0});
    if (trial.ranks != 1 || count == 0 || count == 5) return;
    const auto suspects = suspects_of(trial.results(5));
    ASSERT_EQ(suspects.size(), 1u) << trial.wrong;
    if (count > 2) return;  // a rank that is wrong more often than not cannot know
    EXPECT_EQ(suspects[0].persistent, count > 1 || (trial.wrong & 16U) != 0) << trial.wrong;
  });
}

}  // namespace
}  // namespace megatron::supervise
