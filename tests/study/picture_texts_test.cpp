#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "megatron/charts/bar_chart.h"
#include "megatron/charts/line_chart.h"
#include "megatron/study/scaling.h"
#include "tests/plan/load_hardware.h"
#include "tests/testing/folders.h"
#include "tests/testing/svg_texts.h"

// No text of a chart overlaps another one or leaves the picture, whatever is drawn.
namespace megatron::study {
namespace {

using namespace plan;

using megatron::testing::text_faults;

TEST(ChartTexts, OfPredictionsHaveRoomOnEveryCluster) {
  for (const char* name : {"dgx2h", "dgx-h100", "b200"}) {
    const Hardware hardware = load_hardware(tests_folder() + "/../configs/hardware/" + name + ".toml");
    const auto rows = predict_paper(hardware);
    for (const bool compare : {true, false})
      EXPECT_EQ(text_faults(scaling_svg(rows, hardware, compare)), "") << name << ", compare " << compare;
  }
}

TEST(ChartTexts, OfRecipesHaveRoomWhateverTheirNames) {
  for (const std::string name : {"gpt2_124m", "gpt_145.6b", "configs/of/mine/a_recipe_with_a_long_name.toml", "x"})
    for (const std::size_t count : {1, 2, 7, 30})
      for (const std::size_t series : {1, 2}) {
        charts::BarGroup group{"model operations, share of the peak", {}};
        for (std::size_t i = 0; i < count; ++i)
          group.clusters.push_back({name + "\n64 ranks", std::vector<double>(series, static_cast<double>(i + 1)),
                                    std::vector<std::string>(series, "1234567.8 TFLOP/s")});
        std::vector<charts::BarGroup> groups(3, group);
        groups[1].heading = std::string(70, 'M');
        const std::vector<std::string> names = {"predicted for a cluster that is not here", "measured"};
        EXPECT_EQ(text_faults(charts::draw_bars("Predicted on " + std::string(count * 5, 'D'),
                                                {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(series)},
                                                groups)),
                  "")
            << name << ", " << count << " clusters, " << series << " series";
      }
}

TEST(ChartTexts, OfCurvesHaveRoomWhateverTheNumbers) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(-12, 15), share(0, 1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<charts::Curve> curves(1 + static_cast<std::size_t>(random() % 8));
    const double at = (random() % 2 ? 1 : -1) * std::pow(10, exponent(random)), spread = std::abs(at) * share(random);
    const double x_at = std::pow(10, exponent(random)), x_spread = std::pow(10, exponent(random));
    for (charts::Curve& curve : curves) {
      curve.name = "runs/" + std::string(random() % 90, 'w') + "/gpt";
      for (int i = 0; i < 5; ++i) curve.points.emplace_back(x_at + i * x_spread, at + spread * share(random));
    }
    EXPECT_EQ(text_faults(charts::draw_curves(std::string(random() % 300, 'T'), "consumed_samples",
                                              "a_field_with_a_long_name_of_somebodys_own", curves)),
              "")
        << round << ": " << at << " + " << spread << " over " << x_at << " + " << x_spread;
  }
}

}  // namespace
}  // namespace megatron::study
