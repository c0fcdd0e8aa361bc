#include "megatron/train/log/event_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "megatron/base/files/file.h"
#include "megatron/train/log/scalars.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

class EventFileTest : public ::testing::Test {
 protected:
  std::vector<fs::path> files() const {
    std::set<fs::path> sorted;
    for (const auto& entry : fs::directory_iterator(temporary_.path())) sorted.insert(entry.path());
    return {sorted.begin(), sorted.end()};
  }
  static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  /// The iterations 1 … `last` of two samples each, the even ones validated.
  static void write_run(EventFile& file, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i <= last; ++i) {
      file.write(scalars_of(IterationMetrics{.iteration = i, .consumed_samples = 2 * i, .loss = 1}, {}));
      if (i % 2 == 0)
        file.write(scalars_of(ValidationMetrics{.iteration = i, .consumed_samples = 2 * i, .loss = 1}, {}));
    }
  }
  /// How often each file has the loss against iterations, and the validation loss.
  std::vector<std::pair<std::size_t, std::size_t>> losses() const {
    std::vector<std::pair<std::size_t, std::size_t>> all;
    for (const fs::path& path : files()) {
      const std::string text = read_file(path);
      all.emplace_back(count(text, "lm loss vs samples"), count(text, "lm loss validation vs samples"));
    }
    return all;
  }

  const TemporaryFolder temporary_;
};

TEST_F(EventFileTest, AResumedRunCutsItsFilesWhereItGoesOn) {
  using Counts = std::vector<std::pair<std::size_t, std::size_t>>;
  {
    EventFile file(temporary_.path(), "a", {});
    write_run(file, 1, 6);
  }
  EXPECT_EQ(losses(), (Counts{{6, 3}}));
  {
    EventFile other(temporary_.path(), "b", {});  // another run's
    write_run(other, 1, 1);
  }
  EXPECT_EQ(losses(), (Counts{{6, 3}, {1, 0}}));
  {
    EventFile file(temporary_.path(), "a", {.iteration = 4, .samples = 8, .validated_iteration = 4});
    write_run(file, 5, 5);
  }
  EXPECT_EQ(losses().size(), 3u);
  EXPECT_EQ(losses()[0], std::pair(std::size_t{4}, std::size_t{2}));
  // The fourth iteration is done, its validation is not.
  EventFile file(temporary_.path(), "a", {.iteration = 4, .samples = 8, .validated_iteration = 2});
  EXPECT_EQ(losses()[0], std::pair(std::size_t{4}, std::size_t{1}));
  std::size_t of_other = 0;
  for (const fs::path& path : files()) of_other += path.string().ends_with("-b") ? 1 : 0;
  EXPECT_EQ(of_other, 1u) << "left alone";
}

TEST_F(EventFileTest, StartsThatWroteNothingLeaveNoFiles) {
  for (int start = 0; start < 3; ++start)
    const EventFile file(temporary_.path(), "a", {.iteration = 1, .samples = 1, .validated_iteration = 0});
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(EventFileTest, ARunThatStartsOverLeavesNothingOfTheOneBefore) {
  for (int start = 0; start < 2; ++start) {
    EventFile file(temporary_.path(), "a", {});
    write_run(file, 1, 3);
  }
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(losses()[0].first, 3u);
}

TEST_F(EventFileTest, EachStartsFileSortsBehindThoseBefore) {
  std::vector<fs::path> before;
  for (std::int64_t start = 0; start < 3; ++start) {
    EventFile file(temporary_.path(), "a", {.iteration = start, .samples = start, .validated_iteration = 0});
    write_run(file, start + 1, start + 1);
    const auto now = files();
    ASSERT_EQ(now.size(), before.size() + 1);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin()));
    before = now;
  }
}

// Every prefix, and every byte damaged: what is kept ends before it, at the end of a record.
TEST_F(EventFileTest, KeepsWholeRecordsOfFilesThatAreDamaged) {
  EventFile file(temporary_.path(), "a", {});
  file.write({{"lm loss", 1, 1}});
  const std::size_t before = fs::file_size(files()[0]);
  file.write({{"lm loss", 1, 2}});
  const std::string whole = read_file(files()[0]);
  const ResumePoint end{.iteration = 9, .samples = 9, .validated_iteration = 9};
  ASSERT_EQ(length_until(whole, end), whole.size());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(length_until(whole.substr(0, size), end), size < before ? 0 : before) << size;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    EXPECT_EQ(length_until(damaged, end), at < before ? 0 : before) << at;
  }
  EXPECT_EQ(length_until(whole, {.iteration = 1, .samples = 1, .validated_iteration = 1}), before);
}

TEST_F(EventFileTest, NamesTheFolderThatCannotBeMade) {
  const fs::path path = temporary_.path() / "file";
  std::ofstream(path) << "text";
  try {
    const EventFile file(path, "a", {});
    FAIL() << "wrote into a file";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
  }
}

std::set<std::string> tags_of(const std::vector<Scalar>& scalars) {
  std::set<std::string> tags;
  for (const Scalar& scalar : scalars) tags.insert(scalar.tag);
  return tags;
}

// The names of Megatron-Core's track_moe_metrics, and ours.
TEST(Scalars, OfExpertsAreMeansOverLayersAndTheLargestImbalance) {
  using Layer = ExpertMetrics::Layer;
  ExpertMetrics experts{.layers = {Layer{.number = 1, .loads = {3, 1}, .imbalance = 1.5, .dropped = 0.25, .balance = 2},
                                   Layer{.number = 3, .loads = {2, 2}, .imbalance = 1, .dropped = 0.75, .balance = 1}},
                        .drops = true,
                        .balances = true,
                        .z = false,
                        .by_layer = false};
  const auto values_of = [&] {
    std::map<std::string, double> values;
    for (const Scalar& scalar : scalars_of(IterationMetrics{.iteration = 3, .experts = experts}, {}))
      if (scalar.tag.find("expert") != scalar.tag.npos || scalar.tag.find("balancing") != scalar.tag.npos)
        values[scalar.tag] = scalar.value;
    return values;
  };
  const std::map<std::string, double> whole{
      {"seq_load_balancing_loss", 1.5}, {"expert-imbalance", 1.5}, {"expert-dropped", 0.5}};
  EXPECT_EQ(values_of(), whole);
  experts.by_layer = true;
  auto all = whole;
  all.insert({{"moe/seq_load_balancing_loss_layer_1", 2},
              {"moe/seq_load_balancing_loss_layer_3", 1},
              {"moe/expert-imbalance_layer_1", 1.5},
              {"moe/expert-imbalance_layer_3", 1},
              {"moe/expert-dropped_layer_1", 0.25},
              {"moe/expert-dropped_layer_3", 0.75}});
  EXPECT_EQ(values_of(), all);
}

// The names of Megatron-LM's training_log.
TEST(Scalars, HaveMegatronsTags) {
  const IterationMetrics metrics{.iteration = 3, .consumed_samples = 24, .loss = 2, .sentence_loss = 0.5};
  const auto all = scalars_of(metrics, {});
  EXPECT_EQ(tags_of(all),
            (std::set<std::string>{"learning-rate", "learning-rate vs samples", "batch-size", "batch-size vs samples",
                                   "lm loss", "lm loss vs samples", "sop loss", "sop loss vs samples", "grad-norm",
                                   "grad-norm vs samples", "loss-scale", "loss-scale vs samples", "mem-allocated-bytes",
                                   "mem-max-allocated-bytes", "iteration-time", "throughput", "tokens-per-second"}));
  for (const Scalar& scalar : all) {
    EXPECT_EQ(scalar.step, scalar.tag.ends_with(" vs samples") ? 24 : 3) << scalar.tag;
    if (scalar.tag.starts_with("lm loss")) {
      EXPECT_EQ(scalar.value, 1.5);
    }
    if (scalar.tag.starts_with("sop loss")) {
      EXPECT_EQ(scalar.value, 0.5);
    }
  }
  config::LogConfig few;
  few.loss_scale_to_tensorboard = few.memory_to_tensorboard = few.timers_to_tensorboard = false;
  few.validation_ppl_to_tensorboard = false;
  IterationMetrics skipped = metrics;
  skipped.skipped = true;
  EXPECT_EQ(tags_of(scalars_of(skipped, few)), (std::set<std::string>{"learning-rate", "learning-rate vs samples",
                                                                      "batch-size", "batch-size vs samples"}));
  IterationMetrics tuned = metrics;
  tuned.figures = {{"rewards/margins", 0.5}};
  EXPECT_TRUE(tags_of(scalars_of(tuned, few)).contains("rewards/margins"));
  EXPECT_TRUE(tags_of(scalars_of(ValidationMetrics{.iteration = 3, .loss = 2, .figures = tuned.figures}, few))
                  .contains("rewards/margins validation"));
  few.world_size_to_tensorboard = true;
  EXPECT_TRUE(tags_of(scalars_of(skipped, few)).contains("world-size vs samples"));
  EXPECT_EQ(tags_of(scalars_of(ValidationMetrics{.iteration = 3, .loss = 2}, few)),
            (std::set<std::string>{"lm loss validation", "lm loss validation vs samples"}));
  EXPECT_EQ(tags_of(scalars_of(ValidationMetrics{.iteration = 3, .loss = 2, .set = "novels"}, {})),
            (std::set<std::string>{"lm loss validation-novels", "lm loss validation-novels vs samples",
                                   "lm loss validation-novels ppl", "lm loss validation-novels ppl vs samples"}));
}

}  // namespace
}  // namespace megatron::train
