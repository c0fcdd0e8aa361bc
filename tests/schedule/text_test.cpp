#include "megatron/schedule/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "tests/schedule/shapes.h"

namespace megatron::schedule {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    parse_program(text, "mine.txt");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Text, RoundTripsEveryProgram) {
  for (const int v : {1, 2, 3})
    for (const Named& named : all_programs({.num_ranks = 3, .num_chunks = v, .num_microbatches = 5}))
      for (const Communication how : kCommunications) {
        const Program program = lower(named.program, how);
        EXPECT_EQ(parse_program(to_text(program), "x"), program) << named.name;
        const Program partial = mark_partial(program, 2);
        EXPECT_EQ(parse_program(to_text(partial), "x"), partial) << named.name;
      }
}

TEST(Text, IsWhatTheDocumentationShows) {
  EXPECT_EQ(to_text(generate("1f1b", {.num_ranks = 2, .num_microbatches = 2})),
            "stages 0 1\nmicrobatches 2\nmax-live 2 1\nrank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\n");
}

TEST(Text, MarksWhatIsPartial) {
  EXPECT_EQ(to_text(mark_partial(generate("1f1b", {.num_ranks = 2, .num_microbatches = 2}), 1)),
            "stages 0 1\nmicrobatches 2\nmax-live 2 1\nrank 0: F0.0p F0.1 B0.0p B0.1\n"
            "rank 1: F1.0p B1.0p F1.1p B1.1p\n");
}

TEST(Text, SkipsCommentsEmptyLinesAndLineEnds) {
  EXPECT_EQ(parse_program("# by hand\r\n\r\n  microbatches 2 # two\r\nstages\t0 1\nmax-live 2 1\n\n"
                          "rank 1: F1.0 B1.0 F1.1  B1.1\nrank 0: F0.0 F0.1 B0.0 B0.1 # the end",
                          "x"),
            generate("1f1b", {.num_ranks = 2, .num_microbatches = 2}));
}

TEST(Text, NamesLineAndColumnOfWhatIsWrong) {
  const std::string head = "stages 0 1\nmicrobatches 2\n";
  EXPECT_EQ(error_of(head + "rank 0: F0.0 X0.1\n"),
            "schedule mine.txt, line 3, column 14: an operation is one of F B I W SA RA SG RG wSA wRA wSG wRG R.\n"
            "  got:  'X0.1'\n  fix:  megatron plan RECIPE … --draw schedule.txt writes such files");
  EXPECT_THAT(error_of(head + "rank 0: F2.0\n"),
              HasSubstr("line 3, column 9: the stage of an operation is a number below 2"));
  EXPECT_THAT(error_of(head + "rank 0: F0.2\n"), HasSubstr("the microbatch of an operation is a number below 2"));
  EXPECT_THAT(error_of(head + "rank 0: F0\n"), HasSubstr("an operation is like F0.1"));
  for (const char* word : {"F0.0x", "F0.0px", "F0.0pp", "F0.p0", "SA0.0p", "R0.0p"})
    EXPECT_THAT(error_of(head + "rank 0: " + word + "\n"),
                AnyOf(HasSubstr("an operation is like F0.1"), HasSubstr("is a number.")))
        << word;
  EXPECT_THAT(error_of(head + "rank 0: F0.\n"), HasSubstr("is a number."));
  EXPECT_THAT(error_of(head + "rank 2: F0.0\n"), HasSubstr("line 3, column 6: the rank of a line is a number below 2"));
  EXPECT_THAT(error_of(head + "rank 0 F0.0\n"), HasSubstr("begins with 'rank N:'"));
  EXPECT_THAT(error_of(head + "rank 0:\nrank 0:\n"), HasSubstr("line 4, column 6: one line for each rank"));
  EXPECT_THAT(error_of(head + "rank 0: F0.0\n"), HasSubstr("none for rank 1"));
  EXPECT_THAT(error_of(head + "stages 0 1\n"), HasSubstr("line 3, column 1: one line stages"));
  EXPECT_THAT(error_of(head + "max-live 1\n"), HasSubstr("one number for each rank"));
  EXPECT_THAT(error_of(head + "max-live 1 1 1\n"), HasSubstr("one number for each rank"));
  EXPECT_THAT(error_of(head + "speed 3\n"), HasSubstr("'speed'"));
  EXPECT_THAT(error_of("rank 0: F0.0\n"), HasSubstr("come before those of ranks"));
  EXPECT_THAT(error_of("stages\n"), HasSubstr("at least one stage"));
  EXPECT_THAT(error_of("stages 0 2\n"), HasSubstr("none on rank 1"));
  EXPECT_THAT(error_of("stages 0 -1\n"), HasSubstr("line 1, column 10"));
  EXPECT_THAT(error_of("stages 0\nmicrobatches 2 3\n"), HasSubstr("nothing more in this line"));
  EXPECT_THAT(error_of(""), HasSubstr("no line stages"));
}

TEST(Text, RefusesHostileNumbersAndBytesInOneShortLine) {
  const std::string head = "stages 0\nmicrobatches 2\n";
  for (const std::string& text :
       {std::string("stages 99999999999999999999999999\n"), std::string("stages 0 4096\n"),
        std::string("stages 0\nmicrobatches 4000000000\n"), std::string("stages 0\nmicrobatches 0\n"),
        head + "rank 0: F0.18446744073709551616\n", head + "rank 18446744073709551616: F0.0\n",
        head + "rank 0: " + std::string(1 << 20, '.'), head + std::string(1 << 20, 'x'),
        std::string("\0\x01\xff\xfe rank", 9), head + "rank 0: F0.0" + std::string(1, '\0') + "F0.1",
        "stages " + std::string(1 << 17, '0')}) {
    const std::string error = error_of(text);
    EXPECT_NE(error, "");
    EXPECT_LT(error.size(), 300u);
  }
  std::string stages = "stages";
  for (int i = 0; i < 16385; ++i) stages += " 0";
  EXPECT_THAT(error_of(stages), AllOf(HasSubstr("at most 16384 stages"), HasSubstr("line 1")));
}

}  // namespace
}  // namespace megatron::schedule
