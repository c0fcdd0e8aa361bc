#include <gtest/gtest.h>

#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/schedule/generate.h"
#include "megatron/schedule/pictures/draw.h"
#include "tests/schedule/pictures.h"
#include "tests/testing/folders.h"
#include "tests/testing/svg_texts.h"

// No text of a picture overlaps another one or leaves the picture, whatever is drawn.
namespace megatron::schedule {
namespace {

using megatron::testing::text_faults;

TEST(PictureTexts, FaultsAreSeen) {
  const auto of = [](const std::string& texts) {
    return text_faults("<svg viewBox=\"0 0 100 50\"><style>text{font:10px sans-serif}.e{text-anchor:end}</style>" +
                       texts + "</svg>");
  };
  EXPECT_EQ(of("<text x=\"1\" y=\"20\">one</text><text x=\"40\" y=\"20\">two</text>"), "");
  EXPECT_NE(of("<text x=\"1\" y=\"20\">one</text><text x=\"15\" y=\"24\">two</text>"), "");
  EXPECT_NE(of("<text x=\"90\" y=\"20\">one</text>"), "");
  EXPECT_NE(of("<text x=\"10\" y=\"20\" class=\"e\">one</text>"), "");
  EXPECT_NE(of("<text x=\"10\" y=\"5\">one</text>"), "");
  EXPECT_NE(of(""), "");
}

Timeline with_bytes(Timeline timeline, double bytes) {
  for (double& peak : timeline.peak_bytes) peak *= bytes;
  for (std::vector<MemoryPoint>& points : timeline.memory)
    for (MemoryPoint& point : points) point.bytes *= bytes;
  return timeline;
}

TEST(PictureTexts, OfEveryScheduleHaveRoom) {
  for (const int ranks : {1, 2, 3, 4, 8, 16, 17, 64})
    for (const int microbatches : {1, 2, 8, 30, 100, 1000}) {
      std::vector<std::pair<const char*, Program>> programs;
      const auto shape = [&](int chunks) {
        return Shape{.num_ranks = ranks, .num_chunks = chunks, .num_microbatches = microbatches};
      };
      for (const ScheduleInfo& info : schedules()) {
        const int most = info.v_shaped ? 1000 : 8000;  // which are soon drawn
        if (info.takes(1) ? ranks * microbatches > most && info.splits_backward
                          : ranks == 1 || ranks * microbatches > most)
          continue;
        if (microbatches >= info.min_microbatches(ranks))
          programs.emplace_back(info.name, generate(info, shape(info.min_chunks)));
      }
      if (ranks * microbatches <= 8000) programs.emplace_back("forward only", forward_only(shape(1)));
      for (const auto& [name, program] : programs) {
        SCOPED_TRACE(concat(name, ", ", ranks, " ranks, ", microbatches, " microbatches"));
        const Timeline units = simulate(program);
        EXPECT_EQ(text_faults(draw_svg(units, name)), "");
        const Timeline seconds = with_bytes(stretched(units, 0.01234567), 1.23456e9);
        EXPECT_EQ(text_faults(draw_svg(seconds, name, &units)), "");
      }
    }
}

TEST(PictureTexts, OfLongTitlesManyRanksAndWaitsHaveRoom) {
  const std::string long_title(3000, 'W');
  EXPECT_EQ(text_faults(draw_svg(textbook_1f1b(), long_title)), "");
  EXPECT_EQ(text_faults(draw_svg(long_timeline(1500, 1, 100), "many")), "");
  for (const double factor : {1e-9, 1e-6, 0.00099, 1.0, 55.5555, 1e3, 1e6, 1e9}) {
    Timeline waits = stretched(textbook_zb_h1(), factor);
    waits.ranks[1].insert(waits.ranks[1].begin(), {{Kind::WaitRecvActivation, 1, 0}, 0, factor});
    EXPECT_EQ(text_faults(draw_svg(waits, "waits", &waits)), "") << factor;
    EXPECT_EQ(text_faults(draw_svg(stretched(long_timeline(4, 2, 3), factor), "long")), "") << factor;
  }
}

TEST(PictureTexts, OfTheDocumentationHaveRoom) {
  int pictures = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tests_folder() + "/../docs"))
    if (entry.path().extension() == ".svg") {
      EXPECT_EQ(text_faults(read_file(entry.path())), "") << entry.path();
      ++pictures;
    }
  EXPECT_GE(pictures, 8);
}

}  // namespace
}  // namespace megatron::schedule
