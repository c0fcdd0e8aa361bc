#include "megatron/study/scaling.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <tuple>
#include <type_traits>

#include "megatron/plan/cost/counts.h"
#include "tests/plan/load_hardware.h"
#include "tests/testing/folders.h"

namespace megatron::study {
namespace {

using namespace plan;

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

/// What the paper prints: sizes and efficiencies of table 1 and figure 5, table 7, table 8, and table 2's days.
struct Published {
  const char* table;
  std::int64_t num_layers, hidden, heads;
  int tp, dp;
  double figure;
};
constexpr Published kPublished[] = {
    {"Baseline (5.1)", 40, 1536, 16, 1, 1, 39},
    {"Table 1, tensor-parallel", 54, 1920, 20, 2, 1, 95},
    {"Table 1, tensor-parallel", 64, 2304, 24, 4, 1, 82},
    {"Table 1, tensor-parallel", 72, 3072, 32, 8, 1, 77},
    {"Table 1, with 64-way data-parallel", 40, 1536, 16, 1, 64, 96},
    {"Table 1, with 64-way data-parallel", 54, 1920, 20, 2, 64, 83},
    {"Table 1, with 64-way data-parallel", 64, 2304, 24, 4, 64, 79},
    {"Table 1, with 64-way data-parallel", 72, 3072, 32, 8, 64, 74},
    {"Table 7, heads on 8 ranks", 72, 3072, 16, 8, 1, 82},
    {"Table 7, heads on 8 ranks", 72, 3072, 24, 8, 1, 80},
    {"Table 7, heads on 8 ranks", 72, 3072, 32, 8, 1, 77},
    {"Table 8, strong scaling", 40, 1536, 16, 2, 1, 1.64},
    {"Table 8, strong scaling", 40, 1536, 16, 4, 1, 2.34},
    {"Table 8, strong scaling", 40, 1536, 16, 8, 1, 2.98},
    {"Table 2, not fitted", 24, 1024, 16, 1, 64, 0.86},
    {"Table 2, not fitted", 54, 1920, 20, 2, 64, 2.27},
    {"Table 2, not fitted", 72, 3072, 24, 8, 64, 2.10},
};

TEST(ScalingStudy, ComparesWithTheFiguresThatThePaperPrints) {
  const auto rows = paper_rows();
  ASSERT_EQ(rows.size(), std::size(kPublished));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [table, num_layers, hidden, heads, tp, dp, figure] = kPublished[i];
    EXPECT_EQ(rows[i].table, table);
    EXPECT_EQ(std::tuple(rows[i].num_layers, rows[i].hidden, rows[i].heads, rows[i].tp, rows[i].dp),
              std::tuple(num_layers, hidden, heads, tp, dp))
        << rows[i].label;
    EXPECT_EQ(rows[i].published, figure) << rows[i].label;
  }
}

/// The numbers of a hardware file by their keys.
void collect(auto& part, const std::string& prefix, std::map<std::string, double*>& numbers) {
  auto field = [&](const char* name, auto& value, const char*, const auto&...) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>)
      numbers[prefix + name] = &value;
    else if constexpr (std::is_class_v<std::decay_t<decltype(value)>> &&
                       !std::is_same_v<std::decay_t<decltype(value)>, std::string>)
      collect(value, prefix + name + ".", numbers);
  };
  part.visit(field);
}
std::map<std::string, double*> numbers_of(Hardware& hardware) {
  std::map<std::string, double*> numbers;
  collect(hardware, "", numbers);
  return numbers;
}

constexpr const char* kFitted[] = {"compute.product_efficiency", "compute.product_half_size", "software.launch_us",
                                   "software.speed_spread"};

TEST(ScalingStudy, FitsFourConstantsAndTakesTheOthersFromWhatIsPublishedOrCounted) {
  constexpr double kCopy = 2;  // passes of an operation that reads a tensor and writes one
  const double norm = kCopy, bias = kCopy, dropout = 2.5, sum = 3;
  const std::map<std::string, double> known = {
      {"compute.fp16_tflops", 2.1e3 / 16},  // the paper's peak of a server of 16
      {"compute.fp32_tflops", 16.4},
      {"compute.fp64_tflops", 16.4 / 2},
      {"compute.fp8_tflops", 0},  // a V100 has none
      {"compute.capability", 7.0},
      {"compute.bf16_tflops", 0},                   // no V100 offers it
      {"compute.attention_forward_efficiency", 0},  // not one kernel
      {"compute.attention_backward_efficiency", 0},
      {"memory.bandwidth_gb_s", 900},
      {"memory.efficiency", 790.0 / 900},
      {"node.bandwidth_gb_s", 300.0 / 2},
      {"node.efficiency", 1 - 0.2},
      {"node.latency_us", 3.4},
      {"cluster.bandwidth_gb_s", 100},
      {"cluster.efficiency", 1 - 0.2},
      {"cluster.latency_us", 9.6},
      {"memory.capacity_gb", 32},
      {"software.forward_launches", 30},
      {"software.backward_launches", 2 * 30},
      {"software.stream_forward_passes", 2 * (norm + bias + dropout + sum)},
      {"software.stream_backward_passes", 2 * (5 + dropout + 1 + sum)},
      {"software.query_forward_passes", 3 * bias + 3 * kCopy + kCopy},
      {"software.query_backward_passes", 14},
      {"software.inner_forward_passes", bias + kCopy},
      {"software.inner_backward_passes", 3 + 1},
      {"software.score_forward_passes", 4 * kCopy + dropout},
      {"software.score_backward_passes", dropout + 3 + 2 * kCopy},
      {"software.logit_bytes", 6 + 4 * 8 + 2 * 4 + 8 + 6},
      {"software.optimizer_bytes", 6 + 10 + 8 + 12 + 28 + 2},
      {"software.overlap_slowdown", 0},
  };
  Hardware hardware = load_hardware(kFile);
  auto numbers = numbers_of(hardware);
  for (const auto& [key, value] : known) {
    ASSERT_EQ(numbers.count(key), 1u) << key;
    EXPECT_NEAR(*numbers[key], value, 0.005 * value) << key;
    numbers.erase(key);
  }
  std::vector<std::string> fitted;
  for (const auto& [key, value] : numbers) fitted.push_back(key);
  EXPECT_THAT(fitted, ::testing::ElementsAreArray(kFitted));
  EXPECT_EQ(hardware.ranks_per_node, 16);
}

TEST(ScalingStudy, MissesAGoalWithAnyFittedConstantHalvedOrDoubled) {
  for (const char* key : kFitted)
    for (const double factor : {0.5, 2.0}) {
      Hardware hardware = load_hardware(kFile);
      *numbers_of(hardware).at(key) *= factor;
      EXPECT_FALSE(meets_goals(predict_paper(hardware))) << key << " x " << factor << ": it need not have been fitted";
    }
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
}  // namespace megatron::study
