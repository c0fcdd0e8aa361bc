#include "megatron/schedule/pictures/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "megatron/schedule/generate.h"
#include "tests/schedule/pictures.h"

namespace megatron::schedule {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string without_colour(const std::string& text) {
  return std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m"), "");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Of UTF-8: every byte but those that continue a character.
long columns_of(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

TEST(DrawText, DrawsTheTextbookPictureOf1F1B) {
  EXPECT_EQ(draw_text(textbook_1f1b(), 0, false),
            "rank 0 |012....aa3bb.cc.dd|   33 %     3\n"
            "memory |▃▆██████████▆▆▆▃▃▃|\n"
            "rank 1 |.01..aa2bb3cc.dd..|   33 %     2\n"
            "memory | ▃▆▆▆▆▆▆▆▆▆▆▆▃▃▃  |\n"
            "rank 2 |..0aa1bb2cc3dd....|   33 %     1\n"
            "memory |  ▃▃▃▃▃▃▃▃▃▃▃▃    |\n"
            "        0         10          idle  peak\n"
            "makespan 18 units, bubble 33.3 %, a column is 1 unit\n"
            "0 forward, a backward of microbatch 0, . idle; idle: share of the rank's time; peak: live activations; "
            "memory: planned bytes of activations, █ the most that a rank holds\n");
}

TEST(DrawText, DrawsTheTextbookPictureOfZeroBubbleH1) {
  EXPECT_EQ(draw_text(textbook_zb_h1(), 80, false),
            "rank 0 |0123...aw4bw5cw6dw7ewfwgwhw|   11 %     4\n"
            "memory |▂▄▆██████████████████▆▆▄▄▂▂|\n"
            "rank 1 |.012..a3bw4cw5dw6ew7fwgwhww|   11 %     4\n"
            "memory | ▂▄▆▆▆▆███████████████▆▆▄▄▂|\n"
            "rank 2 |..01.a2b3cw4dw5ew6fw7gwhwww|   11 %     4\n"
            "memory |  ▂▄▄▄▆▆███████████████▆▆▄▂|\n"
            "rank 3 |...0a1b2c3dw4ew5fw6gw7hwwww|   11 %     4\n"
            "memory |   ▂▂▄▄▆▆███████████████▆▄▂|\n"
            "        0         10        20         idle  peak\n"
            "makespan 27 units, bubble 11.1 %, a column is 1 unit\n"
            "0 forward, a backward of microbatch 0, w gradients of weights, . idle; idle:\n"
            "  share of the rank's time; peak: live activations; memory: planned bytes of\n"
            "  activations, █ the most that a rank holds\n");
}

TEST(DrawText, DrawsWhatTheGeneratorsMakeAsTheTextbooksDo) {
  EXPECT_EQ(draw_text(simulate(generate("1f1b", {.num_ranks = 3, .num_microbatches = 4})), 0, false),
            draw_text(textbook_1f1b(), 0, false));
  const Costs all_until_weights{.weight_bytes = {1, 1, 1, 1}};
  EXPECT_EQ(
      draw_text(simulate(generate("zb-h1", {.num_ranks = 4, .num_microbatches = 8}), all_until_weights), 0, false),
      draw_text(textbook_zb_h1(), 0, false));
}

TEST(DrawText, GivesEachStageOfARankARowThatIsBlankWhileTheRankIsBusyWithAnother) {
  Timeline t;
  t.placement = Placement::v_shaped(2);
  t.num_microbatches = 1;
  t.ranks = {{{{Kind::Forward, 0, 0}, 0, 1},
              {{Kind::Forward, 3, 0}, 3, 4},
              {{Kind::Backward, 3, 0}, 4, 6},
              {{Kind::Backward, 0, 0}, 10, 12}},
             {{{Kind::Forward, 1, 0}, 1, 2},
              {{Kind::Forward, 2, 0}, 2, 3},
              {{Kind::Backward, 2, 0}, 6, 8},
              {{Kind::Backward, 1, 0}, 8, 10}}};
  t.makespan = 12;
  t.bubble = 0.5;
  t.idle = {6, 6};
  t.peak_live = {2, 2};
  t.peak_bytes = {2, 2};
  const std::string text = draw_text(t, 80, false);
  EXPECT_EQ(text.substr(0, text.find("makespan")),
            "rank 0 stage 0 |0..   ....aa|   50 %     2\n"
            "       stage 3 | ..0aa....  |\n"
            "rank 1 stage 1 |.0 ...  aa..|   50 %     2\n"
            "       stage 2 |. 0...aa  ..|\n"
            "                0         10    idle  peak\n");
}

TEST(DrawText, ScalesTimeDownToTheWidth) {
  const Timeline t = long_timeline(3, 1, 12);  // 38 units
  for (const double factor : {1.0, 1e-4}) {
    const std::string text = draw_text(stretched(t, factor * 10), 64, false);
    // 64 columns less "rank 0 |", "|" and 13 for idle and peak: 42 columns of 9.05 units for operations of 10 and 20.
    EXPECT_THAT(lines_of(text)[0], HasSubstr("|0aa1bbb2cc3dd4eee5ff6gg7hhh8ii9jj0aa11bb..|"));
  }
}

TEST(DrawText, ShowsTheMostThatARankHoldsInAColumnAgainstTheMostOfAllRanks) {
  Timeline t = long_timeline(2, 1, 100);  // 301 units in 45 columns
  t.memory = {{{0, 1}, {100, 0}, {150, 8}, {150.5, 2}, {301, 0}}, {{0, 0}, {200, 3}}};
  const std::vector<std::string> lines = lines_of(draw_text(t, 67, false));
  const auto times = [](int n, const char* bar) {
    std::string row;
    for (int i = 0; i < n; ++i) row += bar;
    return row;
  };
  EXPECT_EQ(lines[1], "memory |" + times(15, "▁") + times(7, " ") + "█" + times(22, "▂") + "|");
  EXPECT_EQ(lines[3], "memory |" + times(29, " ") + times(16, "▃") + "|");
  EXPECT_EQ(draw_text(t, 67, false, false).find("memory"), std::string::npos);
  EXPECT_EQ(lines_of(draw_text(t, 67, false, false))[1], lines[2]);
}

TEST(DrawText, IsNeverWiderThanAsked) {
  for (const Timeline& t : {long_timeline(2, 1, 1), long_timeline(12, 1, 100),
                            stretched(long_timeline(64, 4, 40), 1e-5), long_timeline(3, 2, 700)})
    for (const int width : {64, 65, 80, 121, 300})
      for (const std::string& line : lines_of(draw_text(t, width, false))) EXPECT_LE(columns_of(line), width) << line;
  for (const std::string& line : lines_of(draw_text(long_timeline(2, 1, 9000), 0, false)))
    EXPECT_LE(columns_of(line), 4200);
}

TEST(DrawText, FillsTheWidthWithATimelineInSeconds) {
  const std::string text = draw_text(stretched(long_timeline(3, 1, 5), 1.5e-3), 100, false);
  EXPECT_EQ(columns_of(lines_of(text)[0]), 100);
  EXPECT_THAT(text, HasSubstr("makespan 25.5 ms"));
}

TEST(DrawText, LetsASignStandForARunOfMicrobatchesWhereOperationsAreNarrowerThanAColumn) {
  const std::string text = draw_text(long_timeline(2, 1, 500), 80, false);
  EXPECT_THAT(text, HasSubstr("microbatches 0-49, 1 and b of the next 50"));
  const std::string row = lines_of(text)[0];
  // Backward takes most of every column; the runs follow one another through the whole row.
  EXPECT_TRUE(std::regex_match(row, std::regex(R"(rank 0 \|a+b+c+d+e+f+g+h+i+j+\|.*)"))) << row;
}

TEST(DrawText, ShowsTheSameSignsInColour) {
  for (const Timeline& t : {textbook_1f1b(), textbook_zb_h1(), long_timeline(3, 2, 100)}) {
    const std::string plain = draw_text(t, 90, false), coloured = draw_text(t, 90, true);
    EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
    EXPECT_NE(coloured, plain);
    EXPECT_EQ(without_colour(coloured), plain);
    for (const std::string& line : lines_of(coloured)) {
      const std::size_t last = line.rfind("\x1b[");
      EXPECT_TRUE(last == std::string::npos || line.substr(last, 4) == "\x1b[0m") << line;
    }
  }
}

TEST(DrawText, ColoursByMicrobatchAndKind) {
  const std::string text = draw_text(textbook_zb_h1(), 0, true);
  std::map<char, std::set<std::string>> styles;
  const std::regex styled("(\x1b\\[[0-9;]+m)([0-9a-w])");
  for (std::sregex_iterator i(text.begin(), text.end(), styled), end; i != end; ++i)
    styles[(*i)[2].str()[0]].insert((*i)[1]);
  std::set<std::string> all;
  for (const char sign : std::string("012345abcdef")) {
    ASSERT_EQ(styles[sign].size(), 1u) << sign;
    all.insert(*styles[sign].begin());
  }
  EXPECT_EQ(all.size(), 12u);
  EXPECT_EQ(styles['w'].size(), 6u);  // one a hue
}

TEST(DrawText, DrawsATimelineInWhichNothingHappens) {
  Timeline t;
  t.ranks = {{}};
  t.idle = {0};
  t.peak_live = {0};
  t.peak_bytes = {0};
  t.memory = {{}};
  EXPECT_THAT(draw_text(t, 80, true), HasSubstr("rank 0 |"));
  EXPECT_THAT(draw_svg(t, ""), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace megatron::schedule
