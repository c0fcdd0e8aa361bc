#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>

#include "megatron/schedule/pictures/draw.h"
#include "tests/schedule/pictures.h"

namespace megatron::schedule {
namespace {

using testing::HasSubstr;
using testing::Not;

/// What keeps a text from being well-formed XML; "" where nothing does. Knows the part of XML that the pictures use:
/// elements, attributes in double quotes, the predefined entities.
std::string xml_error(const std::string& xml) {
  static const std::regex tag(R"(<(/?)([a-zA-Z]+)((?:\s+[a-zA-Z:-]+="[^"<]*")*)\s*(/?)>)");
  static const std::regex bad_entity(R"(&(?!(?:amp|lt|gt|quot|apos);))");
  std::vector<std::string> open;
  std::size_t at = 0;
  bool had_root = false;
  while (at < xml.size()) {
    const std::size_t next = std::min(xml.find('<', at), xml.size());
    const std::string text = xml.substr(at, next - at);
    if (std::regex_search(text, bad_entity)) return "a bare & in " + text;
    if (open.empty() && text.find_first_not_of(" \n") != std::string::npos) return "text outside of the root: " + text;
    if (next == xml.size()) break;
    const std::size_t end = xml.find('>', next);
    if (end == std::string::npos) return "a tag without end";
    const std::string element = xml.substr(next, end + 1 - next);
    std::smatch parts;
    if (!std::regex_match(element, parts, tag)) return "no tag: " + element;
    if (parts[1].length() > 0) {
      if (open.empty() || open.back() != parts[2]) return "closes what is not open: " + element;
      open.pop_back();
    } else {
      if (open.empty() && std::exchange(had_root, true)) return "a second root: " + element;
      if (parts[4].length() == 0) open.push_back(parts[2]);
    }
    at = end + 1;
  }
  return open.empty() && had_root ? "" : "not closed";
}

struct Box {
  std::string kind;  // class
  double x, y, width, height;
  std::string tip;
};

/// The boxes of operations, which are those with tooltips.
std::vector<Box> boxes_of(const std::string& svg) {
  static const std::regex pattern(
      R"re(<rect class="(\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"><title>([^<]*)</title>)re");
  std::vector<Box> boxes;
  for (std::sregex_iterator i(svg.begin(), svg.end(), pattern), end; i != end; ++i)
    boxes.push_back({(*i)[1], std::stod((*i)[2]), std::stod((*i)[3]), std::stod((*i)[4]), std::stod((*i)[5]), (*i)[6]});
  return boxes;
}

TEST(DrawSvg, IsWellFormedWhateverTheTitle) {
  ASSERT_EQ(xml_error("<a><b c=\"d\"/>&lt;</a>"), "");
  for (const char* wrong : {"<a>", "<a></b>", "<a b=c/>", "<a>&</a>", "<a/><a/>", "<a", "x<a/>", ""})
    ASSERT_NE(xml_error(wrong), "") << wrong;
  const Timeline plain = textbook_zb_h1(), long_one = long_timeline(3, 2, 900);
  for (const char* title : {"1f1b", "", "<&>\"'", "a\xff\xfe\x80z", "tab\tbell\a", "\xce\xbcs"}) {
    EXPECT_EQ(xml_error(draw_svg(plain, title)), "") << title;
    EXPECT_EQ(xml_error(draw_svg(plain, title, &long_one)), "") << title;
  }
  EXPECT_THAT(draw_svg(plain, "<&>"), HasSubstr(">&lt;&amp;&gt;</text>"));
  EXPECT_THAT(draw_svg(plain, "a\xff\az"), HasSubstr(">a\xef\xbf\xbd z</text>"));
}

TEST(DrawSvg, HasABoxForEachOperationAtItsTime) {
  const Timeline t = textbook_zb_h1();
  const std::vector<Box> boxes = boxes_of(draw_svg(t, "ZB-H1"));
  std::map<std::string, const Box*> by_op;
  for (const Box& box : boxes) by_op[box.tip.substr(0, box.tip.find(' '))] = &box;
  const double unit = 1000.0 / 27;
  std::map<int, double> row_of_rank;
  std::size_t operations = 0;
  for (std::size_t rank = 0; rank < t.ranks.size(); ++rank)
    for (const Slot& slot : t.ranks[rank]) {
      ++operations;
      ASSERT_TRUE(by_op.contains(to_string(slot.op))) << to_string(slot.op);
      const Box& box = *by_op[to_string(slot.op)];
      EXPECT_NEAR(box.x, boxes[0].x + slot.start * unit, 0.02) << box.tip;  // the first is F0.0, at time 0
      EXPECT_NEAR(box.width, (slot.end - slot.start) * unit, 0.6) << box.tip;
      const char kind = slot.op.kind == Kind::Forward ? 'f' : slot.op.kind == Kind::BackwardWeight ? 'w' : 'b';
      EXPECT_EQ(box.kind, std::string(1, kind) + std::to_string(slot.op.microbatch % 6)) << box.tip;
      EXPECT_EQ(row_of_rank.try_emplace(static_cast<int>(rank), box.y).first->second, box.y) << box.tip;
    }
  EXPECT_EQ(boxes.size(), operations);
  EXPECT_LT(row_of_rank[0], row_of_rank[1]);
}

TEST(DrawSvg, PutsTheStagesOfARankInLanesOfItsRow) {
  const std::vector<Box> boxes = boxes_of(draw_svg(long_timeline(2, 3, 2), "lanes"));
  ASSERT_EQ(boxes.size(), 2u * 3 * 2 * 2);
  std::map<std::string, double> top;
  for (const Box& box : boxes) top[box.tip.substr(0, box.tip.find('.'))] = box.y;
  EXPECT_EQ(top["F2"] - top["F0"], boxes[0].height);
  EXPECT_EQ(top["F4"] - top["F2"], boxes[0].height);
  EXPECT_EQ(top["F4"], top["B4"]);
  EXPECT_GT(top["F1"], top["F4"] + boxes[0].height);  // the next rank's, with the memory curve between
}

TEST(DrawSvg, SaysIdleTimeBubblePeakAndBytes) {
  Timeline t = textbook_1f1b();
  const std::string units = draw_svg(t, "1F1B");
  for (const char* text : {"makespan 18 units, bubble 33.3 %", ">33.3 % idle<", ">peak 3<", ">peak 2<", ">peak 1<",
                           ">rank 2<", ">time in units<"})
    EXPECT_THAT(units, HasSubstr(text));
  for (double& bytes : t.peak_bytes) bytes *= 2e9;
  EXPECT_THAT(draw_svg(stretched(t, 0.0115), "1F1B"), HasSubstr(">peak 3 = 6.00 GB<"));
  EXPECT_THAT(draw_svg(stretched(t, 0.0115), "1F1B"), HasSubstr("makespan 207 ms"));
}

TEST(DrawSvg, DrawsTheMemoryCurveAsSteps) {
  const std::string svg = draw_svg(timeline_of({"0aa1bb", ".0aa1b"}), "");  // 6 units of 166.67 pixels
  std::smatch curve;
  ASSERT_TRUE(std::regex_search(svg, curve, std::regex(R"re(<path class="a" d="M62 ([\d.]+)(H[^"]*)Z")re")));
  const std::string bottom = curve[1], steps = curve[2];
  const double high = std::stod(bottom) - 19;
  std::ostringstream expected;
  expected << "H62V" << high << "H562V" << bottom;
  EXPECT_THAT(steps, HasSubstr(expected.str().substr(0, 6)));
  // One activation is held all the time but for the instant between the microbatches.
  EXPECT_THAT(steps, testing::StartsWith(expected.str().substr(0, expected.str().find("H562"))));
}

TEST(DrawSvg, DrawsSimulatedAndMeasuredOnOneAxis) {
  const Timeline simulated = stretched(textbook_1f1b(), 0.001), measured = stretched(textbook_1f1b(), 0.0015);
  const std::string svg = draw_svg(simulated, "both", &measured);
  EXPECT_THAT(svg, HasSubstr("simulated: makespan 18 ms"));
  EXPECT_THAT(svg, HasSubstr(">measured: makespan 27 ms, bubble 33.3 %; bytes of activations as planned, at the "));
  const std::vector<Box> boxes = boxes_of(svg);
  ASSERT_EQ(boxes.size(), 2u * 24);
  for (std::size_t i = 0; i < 24; ++i) {
    EXPECT_NEAR((boxes[24 + i].x - boxes[0].x) / 1.5, boxes[i].x - boxes[0].x, 0.02);
    EXPECT_GT(boxes[24 + i].y, boxes[23].y);
  }
  EXPECT_THAT(draw_svg(simulated, "one"), Not(HasSubstr("measured")));
}

TEST(DrawSvg, ShowsMeasuredWaitsAsCommunication) {
  Timeline t = textbook_1f1b();
  EXPECT_THAT(draw_svg(t, ""), Not(HasSubstr(">communication<")));
  t.ranks[1].insert(t.ranks[1].begin(), {{Kind::WaitRecvActivation, 1, 0}, 0, 1});
  const std::string svg = draw_svg(t, "");
  EXPECT_THAT(svg, HasSubstr(">communication<"));
  EXPECT_THAT(svg, HasSubstr("<title>wRA1.0  0 - 1 unit</title>"));
}

TEST(DrawSvg, StaysBoundedForEverySchedule) {
  const std::string large = draw_svg(long_timeline(64, 4, 512), "");
  EXPECT_LT(large.size(), 4'000'000u);
  EXPECT_THAT(large, HasSubstr("a hue: 86 microbatches"));
  EXPECT_LT(draw_svg(long_timeline(2, 1, 100'000), "").size(), 400'000u);
  EXPECT_LT(draw_svg(long_timeline(1000, 1, 100), "").size(), 8'000'000u);
}

TEST(DrawSvg, KeepsIdleTimeVisibleWhereOperationsAreNarrowerThanAPixel) {
  Timeline t = long_timeline(1, 1, 4000);
  for (Slot& slot : t.ranks[0]) {  // a pause of a tenth in the middle
    if (slot.start < 6000) continue;
    slot.start += 1200;
    slot.end += 1200;
  }
  t.makespan += 1200;
  t.ranks[0].resize(8000);
  static const std::regex pattern(R"re(<rect class="[fbw]\d" x="([\d.]+)" y="[\d.]+" width="([\d.]+)")re");
  const std::string svg = draw_svg(t, "");
  const std::string picture = svg.substr(svg.find("makespan"));
  double widest_gap = 0, covered = 0, right = 0;
  for (std::sregex_iterator i(picture.begin(), picture.end(), pattern), end; i != end; ++i) {
    const double x = std::stod((*i)[1]), width = std::stod((*i)[2]);
    if (right > 0) widest_gap = std::max(widest_gap, x - right);
    right = x + width;
    covered += width;
  }
  EXPECT_NEAR(widest_gap, 1000 * 1200 / 13200.0, 2);
  EXPECT_NEAR(covered, 1000 * 12000 / 13200.0, 10);
}

}  // namespace
}  // namespace megatron::schedule
