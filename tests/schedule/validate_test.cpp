#include "megatron/schedule/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "megatron/base/error.h"
#include "tests/schedule/brute_force.h"
#include "tests/schedule/shapes.h"

namespace megatron::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string error_of(const std::string& text) {
  const Program program = parse_program(text, "test");
  try {
    validate(program);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string on_two_ranks(const std::string& rank0, const std::string& rank1) {
  return error_of("stages 0 1\nmicrobatches 1\nrank 0: " + rank0 + "\nrank 1: " + rank1 + "\n");
}

TEST(Validate, AcceptsBothFormsOfAProgram) {
  EXPECT_EQ(on_two_ranks("F0.0 B0.0", "F1.0 I1.0 W1.0"), "");
  EXPECT_EQ(on_two_ranks("F0.0 SA0.0 wSA0.0 RG0.0 wRG0.0 B0.0 R0.0", "RA1.0 wRA1.0 F1.0 B1.0 R1.0 SG1.0 wSG1.0"), "");
}

TEST(Validate, RefusesWhatBreaksARule) {
  EXPECT_THAT(on_two_ranks("F0.0", "F1.0 B1.0"), HasSubstr("a forward and a backward of each"));
  EXPECT_THAT(on_two_ranks("F0.0 F0.0", "F1.0 B1.0"), HasSubstr("rank 0 op #1 F0.0 is there again"));
  EXPECT_THAT(on_two_ranks("F0.0 I0.0", "F1.0 B1.0"), HasSubstr("rank 0 never does W0.0"));
  EXPECT_THAT(on_two_ranks("F0.0 B0.0 I0.0 W0.0", "F1.0 B1.0"), HasSubstr("one backward, or one of input"));
  EXPECT_THAT(on_two_ranks("B0.0 F0.0", "F1.0 B1.0"), HasSubstr("rank 0 op #0 B0.0 comes before F0.0"));
  EXPECT_THAT(on_two_ranks("F0.0 W0.0 I0.0", "F1.0 B1.0"), HasSubstr("W0.0 comes before I0.0"));
  EXPECT_THAT(on_two_ranks("F0.0 B0.0 F1.0", "B1.0"), HasSubstr("stage 1 is on rank 1"));
  EXPECT_THAT(on_two_ranks("F0.0 R0.0 B0.0", "F1.0 B1.0 R1.0"), HasSubstr("after the stage's last backward"));
  EXPECT_THAT(on_two_ranks("F0.0 B0.0 R0.0", "F1.0 B1.0"), HasSubstr("on every stage or on none"));
  EXPECT_THAT(on_two_ranks("F0.0 SA0.0 B0.0", "F1.0 B1.0"), HasSubstr("B0.0 comes before wRG0.0"));
  EXPECT_THAT(on_two_ranks("F0.0 SG0.0 B0.0", "F1.0 B1.0"), HasSubstr("messages go to the next stage"));
  EXPECT_THAT(on_two_ranks("F0.0 SA0.0 RG0.0 wRG0.0 B0.0", "RA1.0 wRA1.0 F1.0 B1.0 SG1.0 wSG1.0"),
              HasSubstr("rank 0 never does wSA0.0"));
  EXPECT_THAT(error_of("stages 0\nmicrobatches 2\nmax-live 1\nrank 0: F0.0 F0.1 B0.0 B0.1\n"),
              HasSubstr("F0.1 makes them 2 of 1"));
  EXPECT_THAT(on_two_ranks("F0.0p B0.0", "F1.0 B1.0"), HasSubstr("a backward is partial where its forward is"));
  EXPECT_THAT(on_two_ranks("F0.0p B0.0p", "F1.0 I1.0 W1.0p"), HasSubstr("a backward is partial where its forward is"));
  EXPECT_THAT(error_of("stages 0\nmicrobatches 1\nforward-only\nrank 0: F0.0p\n"), HasSubstr("p is for forward and"));
  EXPECT_THAT(error_of("stages 0\nmicrobatches 1\nforward-only\nrank 0: F0.0 B0.0\n"), HasSubstr("no gradients"));
  EXPECT_THAT(error_of("stages 0 1\nmicrobatches 2\nforward-only\nrank 0: F0.0 F0.1 SA0.0 SA0.1 wSA0.0 wSA0.1\n"
                       "rank 1: RA1.1 RA1.0 wRA1.0 wRA1.1 F1.0 F1.1\n"),
              HasSubstr("message #0 from rank 0 is SA0.0, but rank 1 receives RA1.1"));
}

TEST(Validate, ShowsWhoWaitsForWhomInARing) {
  const std::string computation = error_of(
      "stages 0 1 2\nmicrobatches 2\nrank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1\n"
      "rank 2: F2.0 B2.0 F2.1 B2.1\n");
  EXPECT_EQ(computation,
            "a pipeline schedule can be executed: no ranks wait for one another in a ring.\n"
            "  got:  blocked at:\n"
            "    rank 0 op #1 B0.0 waits for B1.0 of rank 1\n"
            "    rank 1 op #1 F1.1 waits for F0.1 of rank 0\n"
            "    rank 2 op #2 F2.1 waits for F1.1 of rank 1\n"
            "  fix:  megatron plan RECIPE … --draw schedule.txt writes schedules that can");
}

TEST(Validate, RefusesSendsThatBlockOneAnotherUntilTheirReceivesArePosted) {
  const std::string rank0 = "F0.0 SA0.0 wSA0.0 F0.1 SA0.1 wSA0.1 RG0.0 wRG0.0 B0.0 RG0.1 wRG0.1 B0.1";
  const std::string head = "stages 0 1\nmicrobatches 2\nrank 0: " + rank0 + "\nrank 1: RA1.0 wRA1.0 F1.0 B1.0 ";
  EXPECT_THAT(error_of(head + "SG1.0 wSG1.0 RA1.1 wRA1.1 F1.1 B1.1 SG1.1 wSG1.1\n"),
              AllOf(HasSubstr("rank 0 op #5 wSA0.1 waits for RA1.1 of rank 1"),
                    HasSubstr("rank 1 op #5 wSG1.0 waits for RG0.0 of rank 0")));
  EXPECT_EQ(error_of(head + "SG1.0 RA1.1 wSG1.0 wRA1.1 F1.1 B1.1 SG1.1 wSG1.1\n"),
            error_of(head + "RA1.1 SG1.0 wRA1.1 wSG1.0 F1.1 B1.1 SG1.1 wSG1.1\n"));
  EXPECT_EQ(error_of(head + "RA1.1 SG1.0 wRA1.1 wSG1.0 F1.1 B1.1 SG1.1 wSG1.1\n"), "") << "posted together";
}

TEST(Validate, TakesNoMemoryByWhatAProgramOnlyClaims) {
  Program program = accumulate({.num_microbatches = 1});
  program.num_microbatches = 2'000'000'000;
  EXPECT_THROW(validate(program), ConfigError);
  program.num_microbatches = 0;
  EXPECT_THROW(validate(program), ConfigError);
  program = generate("1f1b", {.num_ranks = 2, .num_microbatches = 1});
  program.max_live.pop_back();
  EXPECT_THROW(validate(program), ConfigError);
  program.ranks.pop_back();
  EXPECT_THROW(validate(program), ConfigError);
  program = accumulate({.num_microbatches = 1});
  program.ranks[0][1].stage = -7;
  EXPECT_THROW(validate(program), ConfigError);
  program.ranks[0][1] = {static_cast<Kind>(200), 0, 0};
  EXPECT_THROW(validate(program), ConfigError);
}

TEST(Validate, AcceptsEveryGeneratorInEveryWayOfCommunication) {
  std::mt19937 random(1);
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)) + 1; };
  int programs = 0;
  for (int round = 0; round < 60; ++round) {
    Shape shape{.num_ranks = up_to(16), .num_chunks = up_to(4), .num_microbatches = up_to(round % 3 == 0 ? 64 : 20)};
    if (round % 2 == 0) shape.microbatch_group = shape.num_ranks + up_to(8) - 1;
    for (const Named& named : all_programs(shape)) {
      EXPECT_NO_THROW(validate(named.program)) << named.name;
      for (const Communication how : kCommunications) {
        EXPECT_NO_THROW(validate(lower(named.program, how)))
            << named.name << " " << shape.num_ranks << " " << shape.num_chunks << " " << shape.num_microbatches;
        ++programs;
      }
    }
  }
  EXPECT_GT(programs, 500);
}

/// Changes one thing in a program.
class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  Program mutate(Program program) { return below(6) == 0 ? claim(std::move(program)) : change(std::move(program)); }

  /// Changes what the program says of itself rather than what it does.
  Program claim(Program program) {
    switch (below(4)) {
      case 0:
        if (!program.max_live.empty()) --program.max_live[below(program.max_live.size())];
        break;
      case 1: {  // two stages change ranks
        std::vector<int> ranks;
        for (int stage = 0; stage < program.placement.num_stages(); ++stage)
          ranks.push_back(program.placement.rank_of(stage));
        std::swap(ranks[below(ranks.size())], ranks[below(ranks.size())]);
        program.placement = Placement(ranks);
        break;
      }
      case 2:
        program.forward_only = !program.forward_only;
        break;
      default:
        program.num_microbatches += below(2) == 0 ? 1 : -1;
    }
    return program;
  }

  Program change(Program program) {
    std::vector<Op>& ops = program.ranks[below(program.ranks.size())];
    if (ops.empty()) return program;
    const std::size_t i = below(ops.size()), j = below(ops.size());
    switch (below(8)) {
      case 0:
        ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      case 1:
        ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(j), Op(ops[i]));
        break;
      case 2:
        std::swap(ops[i], ops[j]);
        break;
      case 3:
        std::swap(ops[i], ops[(i + 1) % ops.size()]);
        break;
      case 4: {  // to another rank, or elsewhere on this one
        const Op op = ops[i];
        ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
        std::vector<Op>& other = program.ranks[below(program.ranks.size())];
        other.insert(other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)), op);
        break;
      }
      case 5:
        ops[i].microbatch = static_cast<int>(below(static_cast<std::size_t>(program.num_microbatches) + 1));
        break;
      case 6:
        ops[i].kind = static_cast<Kind>(below(kNumKinds));
        break;
      default: {  // two of one kind change places: of a message, its order
        for (std::size_t k = 0; k < ops.size(); ++k)
          if (k != i && ops[k].kind == ops[i].kind && below(3) == 0) {
            std::swap(ops[k], ops[i]);
            break;
          }
      }
    }
    return program;
  }

  std::size_t below(std::size_t n) { return random_() % n; }

 private:
  std::mt19937 random_;
};

TEST(Validate, RefusesAClaimOfOneLiveActivationLess) {
  for (const Shape& shape : {Shape{4, 1, 7}, Shape{8, 1, 3}, Shape{5, 2, 4}, Shape{3, 3, 6}, Shape{16, 4, 33}})
    for (const Named& named : all_programs(shape))
      for (std::size_t rank = 0; rank < named.program.max_live.size(); ++rank) {
        Program program = named.program;
        --program.max_live[rank];
        EXPECT_THAT([&] { validate(program); }, ThrowsMessage<ConfigError>(HasSubstr("than declared (max-live)")))
            << named.name << " " << rank;
      }
}

TEST(Validate, AgreesWithANaiveExecutionOnMutatedPrograms) {
  Mutator mutator(2);
  int refused = 0, accepted = 0;
  for (const Shape& shape : {Shape{2, 1, 3}, Shape{3, 1, 4}, Shape{2, 2, 3}, Shape{3, 2, 4}, Shape{2, 3, 2},
                             Shape{1, 2, 2}, Shape{8, 1, 9}, Shape{5, 2, 6}, Shape{4, 4, 5}, Shape{8, 4, 8}}) {
    const int mutants = shape.num_ranks > 3 ? 5 : 40;
    for (const Named& named : all_programs(shape))
      for (int how = -1; how < 3; ++how) {
        const Program program = how < 0 ? named.program : lower(named.program, static_cast<Communication>(how));
        ASSERT_TRUE(BruteForce(program).runs()) << named.name;
        for (int i = 0; i < mutants; ++i) {
          const Program mutant = mutator.mutate(program);
          bool valid = true;
          std::string why;
          try {
            validate(mutant);
          } catch (const ConfigError& error) {
            valid = false;
            why = error.what();
          }
          ASSERT_EQ(valid, BruteForce(mutant).runs()) << named.name << "\n" << why << "\n" << to_text(mutant);
          ++(valid ? accepted : refused);
        }
      }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(accepted, 300);  // of two neighbours that do not depend on one another the order does not matter
}

}  // namespace
}  // namespace megatron::schedule
