#include "megatron/comm/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "contract.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"

namespace megatron::comm {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using Runner = void (*)(int, const std::function<void(Group)>&, const LocalOptions&);

struct Transport {
  const char* name;
  Runner run;
};

class Agreement : public testing::TestWithParam<Transport> {
 protected:
  /// What each of `size` ranks throws in `body`, which every rank runs; "" where it throws nothing.
  static std::vector<std::string> said(int size, const std::function<void(const Group&)>& body) {
    std::vector<std::string> said(static_cast<std::size_t>(size));
    GetParam().run(
        size,
        [&](const Group& world) {
          try {
            body(world);
          } catch (const AgreedError& error) {
            said[static_cast<std::size_t>(world.rank())] = error.what();
          } catch (const AgreedFailure& error) {
            said[static_cast<std::size_t>(world.rank())] = std::string("agreed failure: ") + error.what();
          } catch (const std::exception& error) {
            said[static_cast<std::size_t>(world.rank())] = std::string("not agreed: ") + error.what();
          }
        },
        LocalOptions{.timeout = std::chrono::seconds(60)});
    return said;
  }

  /// What the ranks say whose values of the fact "schedule.lr" are these.
  static std::vector<std::string> said_of(const std::vector<std::string>& values) {
    return said(static_cast<int>(values.size()), [&](const Group& world) {
      require_agreement(world, {{"model.hidden_size", "64"},
                                {"schedule.lr", values[static_cast<std::size_t>(world.rank())]},
                                {"train.seed", "1"}});
    });
  }
};

TEST_P(Agreement, EqualFactsAreNoError) {
  EXPECT_THAT(said_of({"1e-3", "1e-3", "1e-3"}), Each(std::string()));
  EXPECT_THAT(said(3, [](const Group& world) { require_agreement(world, {}); }), Each(std::string()));
}

TEST_P(Agreement, NamesRanksFactAndBothValuesOnEveryRank) {
  const auto two = said_of({"3e-4", "1e-3"});
  EXPECT_THAT(two, Each(HasSubstr("schedule.lr: rank 0: 3e-4; rank 1: 1e-3\n"))) << two[0];
  EXPECT_THAT(two, Each(AllOf(Not(HasSubstr("hidden_size")), Not(HasSubstr("seed"))))) << "they do not differ";
  EXPECT_THAT(said_of({"3e-4", "1e-3", "3e-4"}), Each(HasSubstr("schedule.lr: rank 1: 1e-3; the others: 3e-4\n")));
  EXPECT_THAT(said_of({"a", "b", "a", "b"}), Each(HasSubstr("schedule.lr: ranks 0, 2: a; ranks 1, 3: b\n")))
      << "nobody is the others of half the ranks";
}

TEST_P(Agreement, ManyRanksAreGrouped) {
  EXPECT_THAT(said_of({"b", "a", "b", "a", "a", "a", "b", "b", "b"}),
              Each(HasSubstr("schedule.lr: ranks 1, 3-5: a; the others: b\n")));
}

TEST_P(Agreement, AFactThatARankLacksDiffers) {
  const auto answers = said(2, [](const Group& world) {
    Facts facts = {{"version of megatron", world.rank() == 0 ? "1.0" : "1.1"}};
    if (world.rank() == 1) facts.push_back({"model.new_option", "7"});
    require_agreement(world, facts);
  });
  EXPECT_THAT(answers, Each(AllOf(HasSubstr("version of megatron: rank 0: 1.0; rank 1: 1.1\n"),
                                  HasSubstr("model.new_option: rank 0: (nothing); rank 1: 7\n"))));
}

TEST_P(Agreement, LongValuesAreShownWhereTheyDiffer) {
  const std::string begin(5000, 'x'), end(5000, 'z');
  const auto answers = said_of({begin + "here" + end, begin + "there" + end});
  EXPECT_THAT(answers, Each(AllOf(HasSubstr("xhere"), HasSubstr("xthere"))));
  EXPECT_LT(answers[0].size(), 1000u);
}

TEST_P(Agreement, WhatAPeerSendsCannotDriveATerminal) {
  EXPECT_THAT(said_of({"a", "\x1b[2J\rb"}),
              Each(AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r")), HasSubstr("[2J"))));
}

TEST_P(Agreement, AFactThatARankCannotReadEndsAllWithItsReason) {
  const std::string reason = "a file must be readable.\n  got:  " + std::string(200, 'x') + ": Permission denied";
  const auto facts_of = [&](bool is_unread) -> Facts {
    return {{"file text.idx", is_unread ? reason : "60 bytes", is_unread}, {"train.seed", "1"}};
  };
  EXPECT_THAT(said(3, [&](const Group& world) { require_agreement(world, facts_of(world.rank() == 1)); }),
              Each("rank 1: " + reason))
      << "whole, and not as a value that differs";
  EXPECT_THAT(said(2, [&](const Group& world) { require_agreement(world, facts_of(true)); }), Each(std::string()))
      << "who reads the file says what all have";
  const Facts failed = {{"file text.idx", "Input/output error", /*is_unread=*/true, /*is_config=*/false}};
  EXPECT_THAT(said(2, [&](const Group& world) { require_agreement(world, world.rank() == 1 ? failed : Facts()); }),
              Each(std::string("agreed failure: rank 1: Input/output error")));
}

TEST_P(Agreement, WorkThatFailsOnOneRankFailsOnAll) {
  const auto wrong = said(3, [](const Group& world) {
    run_together(world, [&] {
      if (world.rank() == 2) throw ConfigError("the folder is taken");
    });
  });
  EXPECT_THAT(wrong, Each(std::string("rank 2: the folder is taken")));
  const auto failed = said(3, [](const Group& world) {
    run_together(world, [&] {
      if (world.rank() == 2) throw std::runtime_error("the disk is full");
    });
  });
  EXPECT_THAT(failed, Each(std::string("agreed failure: rank 2: the disk is full")));
  int done = 0;
  EXPECT_THAT(said(1, [&](const Group& world) { run_together(world, [&] { ++done; }); }), Each(std::string()));
  EXPECT_EQ(done, 1);
}

TEST_P(Agreement, TextsOfAnyLengthReachEveryRank) {
  const std::vector<std::string> texts = {"", std::string(100'000, 'b'), std::string("c\0d", 3)};
  EXPECT_THAT(said(3,
                   [&](const Group& world) {
                     EXPECT_EQ(gather_texts(world, texts[static_cast<std::size_t>(world.rank())]), texts);
                   }),
              Each(std::string()));
}

INSTANTIATE_TEST_SUITE_P(Transports, Agreement,
                         testing::Values(Transport{"local", &run_ranks}, Transport{"gloo", &run_gloo_ranks}),
                         [](const auto& p) { return std::string(p.param.name); });

}  // namespace
}  // namespace megatron::comm
