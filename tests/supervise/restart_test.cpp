#include "megatron/supervise/restart.h"

#include <gtest/gtest.h>

namespace megatron::supervise {
namespace {

using What = Decision::What;

TEST(Restart, WaitsTwiceAsLongAfterEachFailureWithoutACheckpoint) {
  RestartPolicy policy({.max_restarts = 100, .tries = 100, .backoff_s = 2, .max_backoff_s = 30});
  for (const double delay_s : {2., 4., 8., 16., 30., 30.}) EXPECT_EQ(policy.failed({}).delay_s, delay_s);
  EXPECT_EQ(policy.failed({.checkpoint = 5}).delay_s, 2) << "a new checkpoint";
  EXPECT_EQ(policy.failed({.checkpoint = 5}).delay_s, 4) << "the same one";
  EXPECT_EQ(policy.failed({.checkpoint = 3}).delay_s, 8) << "an older one";
}

TEST(Restart, TriesFewerRanksAfterSoManyFailuresInARow) {
  RestartPolicy policy({.max_restarts = 100, .tries = 3});
  EXPECT_EQ(policy.failed({.checkpoint = 10}).what, What::Restart);
  EXPECT_EQ(policy.failed({.checkpoint = 10}).what, What::Restart);
  EXPECT_EQ(policy.failed({.checkpoint = 10}).what, What::Shrink);
  EXPECT_EQ(policy.failed({.checkpoint = 10}).what, What::Restart) << "the smaller layout is tried as often";
  EXPECT_EQ(policy.failed({.checkpoint = 10}).what, What::Restart);
  EXPECT_EQ(policy.failed({.checkpoint = 10}).what, What::Shrink);
  EXPECT_EQ(policy.failed({.checkpoint = 11}).what, What::Restart);
}

TEST(Restart, GivesUpWhereTheBudgetIsSpent) {
  RestartPolicy policy({.max_restarts = 2, .tries = 1});
  EXPECT_NE(policy.failed({.checkpoint = 1}).what, What::GiveUp);
  EXPECT_NE(policy.failed({.checkpoint = 2}).what, What::GiveUp);
  EXPECT_EQ(policy.failed({.checkpoint = 3}).what, What::GiveUp);
  EXPECT_EQ(policy.restarts(), 2);
}

TEST(Restart, EndsWhereTheCommandIsWrong) {
  RestartPolicy policy({.max_restarts = 100, .tries = 2});
  EXPECT_EQ(policy.failed({.refused = true}).what, What::Refused) << "at the first start";
  EXPECT_EQ(policy.failed({.checkpoint = 5}).what, What::Restart);
  EXPECT_EQ(policy.failed({.checkpoint = 5, .refused = true}).what, What::Refused) << "and at any other";
  EXPECT_EQ(policy.restarts(), 1);
}

TEST(Restart, TriesStillFewerRanksWhereFewerAreRefused) {
  RestartPolicy policy({.max_restarts = 100, .tries = 2});
  policy.failed({.checkpoint = 5});
  EXPECT_EQ(policy.failed({.checkpoint = 5}).what, What::Shrink);
  EXPECT_EQ(policy.failed({.checkpoint = 5, .refused = true}).what, What::Shrink);
  EXPECT_EQ(policy.failed({.checkpoint = 5, .refused = true}).what, What::Shrink);
  EXPECT_EQ(policy.failed({.checkpoint = 5}).what, What::Restart) << "these ran";
  EXPECT_EQ(policy.failed({.checkpoint = 6, .refused = true}).what, What::Refused);
}

TEST(Restart, TriesFewerRanksAtOnceWhereOneIsLost) {
  RestartPolicy policy({.max_restarts = 3, .tries = 5});
  EXPECT_EQ(policy.failed({.checkpoint = 5, .lost = true}).what, What::Shrink);
  EXPECT_EQ(policy.failed({.checkpoint = 5, .refused = true}).what, What::Shrink) << "still fewer may be taken";
  EXPECT_EQ(policy.failed({.checkpoint = 6}).what, What::Restart);
  EXPECT_EQ(policy.failed({.checkpoint = 7, .lost = true}).what, What::GiveUp);
}

TEST(Restart, CountsOnWhereAnotherHasCounted) {
  RestartPolicy policy({.max_restarts = 3, .restarts = 2});
  EXPECT_EQ(policy.failed({}).what, What::Restart);
  EXPECT_EQ(policy.restarts(), 3);
  EXPECT_EQ(policy.failed({}).what, What::GiveUp);
}

TEST(Restart, NeverWaitsForEver) {
  RestartPolicy policy({.max_restarts = 100000, .tries = 1, .backoff_s = 1, .max_backoff_s = 300});
  for (int i = 0; i < 5000; ++i) EXPECT_LE(policy.failed({}).delay_s, 300);
}

}  // namespace
}  // namespace megatron::supervise
