#include "megatron/plan/scaling.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

#include "megatron/base/file.h"
#include "megatron/plan/counts.h"
#include "tests/testing/folders.h"

namespace megatron::plan {
namespace {

using ::testing::HasSubstr;

const std::string kFile = tests_folder() + "/../configs/hardware/dgx2h.toml";

const std::vector<PredictedRow>& predicted() {
  static const std::vector<PredictedRow> rows = predict_paper(load_hardware(kFile));
  return rows;
}

TEST(ScalingStudy, PredictsThePaperWithinItsGoals) {
  std::map<std::string, int> rows_of;
  for (const PredictedRow& row : predicted()) {
    ++rows_of[row.paper.table];
    if (!row.has_goal()) continue;
    const double off = std::abs(row.predicted - row.paper.published);
    const bool first_goal =
        row.paper.published == 74 || (row.paper.published == 77 && row.paper.table.starts_with("Table 1"));
    EXPECT_LE(off, first_goal ? 3 : 0.1 * row.paper.published)
        << row.paper.table << ", " << row.paper.label << ": " << row.predicted << " for " << row.paper.published;
    EXPECT_TRUE(row.meets_goal()) << row.paper.label;
  }
  EXPECT_TRUE(meets_goals(predicted()));
  const std::map<std::string, int> expected = {{"Baseline (5.1)", 1},
                                               {"Table 1, tensor-parallel", 3},
                                               {"Table 1, with 64-way data-parallel", 4},
                                               {"Table 7, heads on 8 ranks", 3},
                                               {"Table 8, strong scaling", 3},
                                               {"Table 2, not fitted", 3}};
  EXPECT_EQ(rows_of, expected);
}

TEST(ScalingStudy, FitsFewerConstantsThanItHasRows) {
  const std::string text = read_file(kFile);
  const std::regex fitted("\n# Fitted");
  const auto count = std::distance(std::sregex_iterator(text.begin(), text.end(), fitted), std::sregex_iterator());
  const auto rows =
      std::count_if(predicted().begin(), predicted().end(), [](const auto& row) { return row.has_goal(); });
  EXPECT_EQ(count, 4);
  EXPECT_EQ(rows, 14);
}

TEST(ScalingStudy, RunsWhatThePaperRan) {
  // Billions of parameters by table, and 8 samples on each model copy.
  const std::map<std::string, double> billions = {
      {"1.2 B", 1.2}, {"2.5 B", 2.5}, {"4.2 B", 4.2}, {"8.3 B", 8.3}, {"355 M", 0.355}};
  for (const PaperRow& row : paper_rows()) {
    const ResolvedRun run = resolve(paper_config(row));
    EXPECT_EQ(run.microbatches_per_step, 1) << row.label;
    EXPECT_EQ(run.shape.padded_vocab, 51200) << row.label;
    EXPECT_EQ(run.config.train.recompute, "full") << row.label;
    EXPECT_EQ(run.config.train.global_batch_size, 8 * row.dp) << row.label;
    const auto found = billions.find(row.label.substr(0, 5));
    if (found == billions.end()) continue;  // table 7
    EXPECT_NEAR(static_cast<double>(parameter_count(run.shape)) / 1e9, found->second, 0.05) << row.label;
  }
}

TEST(ScalingStudy, FitsThePapersRunsIntoTheMemoryOfItsCluster) {
  for (const PredictedRow& row : predicted()) EXPECT_TRUE(row.memory.fits()) << row.paper.label << row.memory.text();
  EXPECT_EQ(predicted().front().memory.capacity, 32e9);
  // 1.2 B parameters: 2 + 2 bytes of fp16 weights and gradients, 4 of masters, 8 of moments; the rest is activations.
  const std::int64_t weights = 16 * parameter_count(resolve(paper_config(paper_rows().front())).shape);
  EXPECT_GT(predicted().front().memory.bytes, weights);
  EXPECT_LT(predicted().front().memory.bytes, weights + weights / 4);
}

TEST(ScalingStudy, GivesNoFiguresForWhatDoesNotFit) {
  Hardware small = load_hardware(kFile);
  small.memory.capacity_gb = 16;
  const std::vector<PredictedRow> rows = predict_paper(small);
  EXPECT_FALSE(rows.front().memory.fits()) << "1.2 B on one rank";
  EXPECT_TRUE(rows[11].memory.fits()) << "1.2 B on two ranks";
  EXPECT_FALSE(meets_goals(rows));
  for (const bool compare : {false, true}) {
    const std::string table = scaling_markdown(rows, compare);
    EXPECT_THAT(table, HasSubstr("does not fit: needs " + rows.front().memory.text().substr(6)));
    EXPECT_THAT(table, ::testing::Not(HasSubstr(figure_text(Figure::Teraflops, rows.front().predicted))));
    EXPECT_THAT(table, HasSubstr(figure_text(Figure::Speedup, rows[11].predicted)));
  }
  EXPECT_THAT(scaling_svg(rows, small, false), HasSubstr(">no room<"));
}

TEST(ScalingStudy, MissesWhatItShouldMiss) {
  PredictedRow row = predicted().front();
  row.paper.published = row.predicted * 1.2;
  EXPECT_FALSE(row.meets_goal());
  EXPECT_FALSE(meets_goals({predicted().front(), row}));
  row.paper.points = 1000;
  EXPECT_TRUE(row.meets_goal());
}

TEST(ScalingStudy, ShowsEveryRowInTableAndPicture) {
  const Hardware hardware = load_hardware(kFile);
  const std::string table = scaling_markdown(predicted(), true), alone = scaling_markdown(predicted(), false);
  const std::string picture = scaling_svg(predicted(), hardware, true);
  for (const PredictedRow& row : predicted()) {
    EXPECT_THAT(table, HasSubstr("| " + row.paper.table + " | " + row.paper.label + " | " +
                                 figure_text(row.paper.figure, row.paper.published) + " | " +
                                 figure_text(row.paper.figure, row.predicted) + " | "));
    EXPECT_THAT(alone, HasSubstr(row.paper.label + " | " + figure_text(row.paper.figure, row.predicted) + " | "));
    EXPECT_THAT(picture, HasSubstr(">" + row.paper.table + "<"));
  }
  // Columns are as high as their figures: those of the first efficiencies, which share a scale.
  const std::regex column("class=\"c[01]\"[^>]*width=\"(?:2[89]|[3-9]\\d)[.0-9]*\" height=\"([0-9.]+)\"");
  std::vector<double> heights;
  for (std::sregex_iterator i(picture.begin(), picture.end(), column), end; i != end; ++i)
    heights.push_back(std::stod((*i)[1]));
  ASSERT_EQ(heights.size(), 2 * predicted().size());
  EXPECT_NEAR(heights[4] / heights[2], 82.0 / 95.0, 1e-3);
  EXPECT_NEAR(heights[3] / heights[2], predicted()[1].predicted / 95.0, 1e-3);
}

}  // namespace
}  // namespace megatron::plan
