#include "megatron/train/log/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/train/log/metric_fields.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::train {
namespace {

class MetricsTest : public ::testing::Test {
 protected:
  std::vector<nlohmann::json> lines() const {
    std::ifstream in(folder_ / "metrics.jsonl");
    std::vector<nlohmann::json> objects;
    for (std::string line; std::getline(in, line);) objects.push_back(nlohmann::json::parse(line));
    return objects;
  }
  const TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(MetricsTest, WritesOneObjectAnIterationWithTheContractsFields) {
  MetricsFile file(folder_ / "metrics.jsonl", 0, 0);
  file.write(IterationMetrics{.iteration = 3,
                              .consumed_samples = 24,
                              .loss = 5.5,
                              .grad_norm = 1.25,
                              .learning_rate = 1e-4,
                              .loss_scale = 1,
                              .batch_size = 8,
                              .tokens_per_s = 1000,
                              .tflops_per_rank = 0.5,
                              .step_ms = 12.5,
                              .data_wait_ms = 0.25,
                              .memory_bytes = 1 << 19,
                              .peak_memory_bytes = 1 << 20});
  file.write(ValidationMetrics{.iteration = 3, .consumed_samples = 24, .loss = 5, .perplexity = std::exp(5.0)});
  const auto written = lines();
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0], nlohmann::json::parse(R"({"iteration":3,"consumed_samples":24,"batch_size":8,"loss":5.5,
    "grad_norm":1.25,"learning_rate":1e-4,"loss_scale":1.0,"tokens_per_s":1000.0,"step_ms":12.5,"tflops_per_rank":0.5,
    "data_wait_ms":0.25,"memory_bytes":524288,"peak_memory_bytes":1048576})"));
  EXPECT_EQ(written[1]["valid_loss"], 5.0);
  file.write(IterationMetrics{.iteration = 4, .decoupled_learning_rate = 2e-5, .high_matmul_precision = true});
  EXPECT_EQ(lines()[2]["matmul_precision"], "high");
  EXPECT_EQ(lines()[2]["decoupled_learning_rate"], 2e-5);
  EXPECT_EQ(written[1]["valid_ppl"], std::exp(5.0));
  file.write(IterationMetrics{.iteration = 5, .figures = {{"rewards/margins", 0.5}}});
  EXPECT_EQ(lines()[3]["rewards/margins"], 0.5);
  file.write(ValidationMetrics{.iteration = 5, .figures = {{"rewards/margins", 0.25}}});
  EXPECT_EQ(lines()[4]["valid_rewards/margins"], 0.25);
}

TEST_F(MetricsTest, KnowsEveryFieldOfItsOwn) {
  IterationMetrics all;
  all.sentence_loss = all.decoupled_learning_rate = all.num_zeros = all.params_norm = 1.0;
  all.depth_losses = {1, 2};
  all.experts.emplace();
  all.experts->layers.resize(1);
  all.experts->layers[0].loads = {1, 2};
  all.experts->drops = all.experts->balances = all.experts->z = all.experts->by_layer = true;
  all.times.resize(1);
  all.straggler = IterationMetrics::Straggler{};
  all.slowest_by_timer.resize(1);
  all.skipped = all.high_matmul_precision = true;
  MetricsFile file(folder_ / "metrics.jsonl", 0, 0);
  file.write(all);
  file.write_skipped_batch(1, 2, 2);
  for (const bool test : {false, true}) {
    ValidationMetrics validation;
    validation.sentence_loss = 1.0;
    validation.set = "novels";
    validation.test = test;
    file.write(validation);
  }
  std::size_t fields = 0;
  for (const nlohmann::json& line : lines())
    for (const auto& [name, value] : line.items()) {
      ++fields;
      EXPECT_TRUE(is_metrics_field(name)) << name << " of " << value;
    }
  EXPECT_GT(fields, 40u);
  EXPECT_FALSE(is_metrics_field("rewards/chosen"));
}

TEST_F(MetricsTest, AFileThatIsRemovedMeanwhileIsWrittenAnewWhole) {
  const auto path = folder_ / "metrics.jsonl";
  {
    MetricsFile before(path, 0, 0);
    before.write(IterationMetrics{.iteration = 1});
  }
  MetricsFile file(path, 1, 1);  // a run that resumes
  file.write(IterationMetrics{.iteration = 2});
  ::testing::internal::CaptureStderr();
  std::filesystem::remove(path);
  file.write(IterationMetrics{.iteration = 3});
  std::filesystem::rename(path, folder_ / "old.jsonl");
  file.write(IterationMetrics{.iteration = 4});
  std::filesystem::remove_all(folder_);
  file.write(IterationMetrics{.iteration = 5});
  file.write(IterationMetrics{.iteration = 6});
  const std::string said = ::testing::internal::GetCapturedStderr();
  const auto written = lines();
  ASSERT_EQ(written.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(written[i]["iteration"], i + 1);
  std::size_t warnings = 0;
  for (std::size_t at = said.find("was removed"); at != std::string::npos; at = said.find("was removed", at + 1))
    ++warnings;
  EXPECT_EQ(warnings, 3u) << said;
}

TEST_F(MetricsTest, NothingIsWrittenInAFolderThatIsNoLongerTheRuns) {
  const auto path = folder_ / "metrics.jsonl";
  bool is_held = true;
  MetricsFile file(path, 0, 0, [&] {
    if (!is_held) throw std::runtime_error("another's");
  });
  file.write(IterationMetrics{.iteration = 1});
  std::filesystem::rename(path, folder_ / "old.jsonl");
  file.write(IterationMetrics{.iteration = 2});
  EXPECT_EQ(lines().size(), 2u) << "the file alone was moved";
  std::filesystem::remove(path);
  is_held = false;
  EXPECT_THROW(file.write(IterationMetrics{.iteration = 3}), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "theirs\n";
  EXPECT_THROW(file.write(IterationMetrics{.iteration = 3}), std::runtime_error);
  EXPECT_EQ(std::filesystem::file_size(path), 7u);
}

TEST_F(MetricsTest, AFileThatIsReplacedMeanwhileIsGoneOnWith) {
  const auto path = folder_ / "metrics.jsonl";
  MetricsFile file(path, 0, 0);
  file.write(IterationMetrics{.iteration = 1});
  std::filesystem::copy_file(path, folder_ / "edited");  // as editors save
  std::filesystem::rename(folder_ / "edited", path);
  ::testing::internal::CaptureStderr();
  file.write(IterationMetrics{.iteration = 2});
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("was replaced"), std::string::npos);
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[1]["iteration"], 2);
}

TEST_F(MetricsTest, NamesTheSetOfAValidationWhereThereAreSeveralAndTheTest) {
  MetricsFile file(folder_ / "metrics.jsonl", 0, 0);
  file.write(ValidationMetrics{.iteration = 1, .loss = 2, .set = "novels"});
  file.write(ValidationMetrics{.iteration = 1, .loss = 3, .perplexity = 4, .test = true});
  EXPECT_EQ(lines()[0]["valid_set"], "novels");
  EXPECT_EQ(lines()[0]["valid_loss"], 2);
  EXPECT_EQ(lines()[1]["test_loss"], 3);
  EXPECT_EQ(lines()[1]["test_ppl"], 4);
  EXPECT_FALSE(lines()[1].contains("valid_loss"));
}

TEST_F(MetricsTest, ANanIsNullAndSaysThatTheStepWasSkipped) {
  MetricsFile file(folder_ / "metrics.jsonl", 0, 0);
  file.write(IterationMetrics{.iteration = 1, .loss = std::nan(""), .skipped = true});
  EXPECT_TRUE(lines().at(0)["loss"].is_null());
  EXPECT_EQ(lines().at(0)["skipped"], true);
}

TEST_F(MetricsTest, AResumedRunRewritesTheIterationsAfterItsCheckpoint) {
  {
    MetricsFile file(folder_ / "metrics.jsonl", 0, 0);
    for (std::int64_t i = 1; i <= 5; ++i) file.write(IterationMetrics{.iteration = i, .loss = 1});
  }
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << R"({"iteration": 6, "lo)";  // cut off by a crash
  MetricsFile file(folder_ / "metrics.jsonl", 3, 3);
  EXPECT_EQ(file.lines_taken_out(), 2) << "whole ones";
  file.write(IterationMetrics{.iteration = 4, .loss = 2});
  const auto written = lines();
  ASSERT_EQ(written.size(), 4u);
  for (std::size_t i = 0; i < written.size(); ++i) EXPECT_EQ(written[i]["iteration"], i + 1);
  EXPECT_EQ(written[3]["loss"], 2.0);
}

TEST_F(MetricsTest, NamesTheFileThatCannotBeOpened) {
  const auto path = folder_ / "missing" / "metrics.jsonl";
  try {
    MetricsFile file(path, 0, 0);
    FAIL() << "opened a file in a folder that does not exist";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace megatron::train
