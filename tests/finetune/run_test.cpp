#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/philox.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/finetune/evaluate.h"
#include "megatron/finetune/results.h"
#include "megatron/finetune/seed_run.h"
#include "megatron/finetune/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/steps/batch_plan.h"
#include "megatron/tasks/scores/metrics.h"
#include "tests/testing/temporary_folder.h"

// Runs of a task, and that no layout of ranks shows in them.
namespace megatron::finetune {
namespace {

constexpr std::int64_t kVocab = 40;

/// Random rows of 6 to 20 tokens, of which the second says the class.
class ToyTask final : public tasks::Task {
 public:
  ToyTask(tasks::TaskForm form, std::size_t size, std::uint64_t seed) : form_(form), size_(size), seed_(seed) {}

  std::size_t size() const override { return size_; }
  std::size_t examples() const override { return size_; }
  std::string left_out() const override { return ""; }
  std::int32_t length(std::size_t sample) const override { return 6 + static_cast<std::int32_t>(word(sample, 0) % 15); }
  std::int32_t fill(std::size_t sample, int row, std::span<std::int32_t> ids,
                    std::span<std::int32_t> types) const override {
    const std::int32_t n = length(sample) - row;  // the options of a question have different lengths
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool there = static_cast<std::int32_t>(i) < n;
      ids[i] =
          there ? static_cast<std::int32_t>(10 + word(sample, 100 * static_cast<std::size_t>(row) + i + 2) % 30) : 0;
      types[i] = there && static_cast<std::int32_t>(i) > n / 2 ? 1 : 0;
    }
    ids[1] = static_cast<std::int32_t>(std::string_view(form_.head) == "options" ? target(sample)[0] == row
                                                                                 : target(sample)[0]);
    return n;
  }
  std::array<std::int64_t, 2> target(std::size_t sample) const override {
    if (form_.targets == 1) return {word(sample, 1) % 3, -1};
    const std::int64_t first = word(sample, 1) % 5;
    return {first, first + 1};
  }
  bool labelled() const override { return true; }
  std::size_t width() const override { return form_.targets == 2 ? 48 : form_.rows > 1 ? 4 : 3; }
  tasks::TaskScores scores(std::span<const float> logits, std::optional<double>) const override {
    std::vector<std::int32_t> labels;
    for (std::size_t i = 0; i < size_; ++i) labels.push_back(static_cast<std::int32_t>(target(i)[0]));
    const auto best = tasks::best_classes(logits, width());
    return {.metrics = {{"accuracy", 100 * tasks::accuracy(best, labels)}}};
  }
  std::vector<tasks::PredictionFile> predictions(std::span<const float> logits, double) const override {
    std::string text;
    for (const std::int32_t best : tasks::best_classes(logits, width())) text += concat(best, '\n');
    return {{"predictions.tsv", text}};
  }

 private:
  std::uint32_t word(std::size_t sample, std::size_t i) const { return random_word(seed_, sample, i); }

  tasks::TaskForm form_;
  std::size_t size_;
  std::uint64_t seed_;
};

struct Layout {
  int tp = 1, pp = 1, dp = 1;
  bool sp = false, sharded = false;
  std::int64_t micro_batch = 1;
  std::string schedule = {};
};

plan::ResolvedRun run_of(const Layout& layout, const tasks::TaskForm& form, bool bert, const char* dtype = "fp64") {
  config::RunConfig config;
  config.model.architecture = bert ? "bert" : "gpt";
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = kVocab;
  config.model.apply_residual_connection_post_layernorm = bert;
  config.model.head = form.head;
  config.model.num_classes = form.num_classes;
  config.data.seq_length = 24;
  config.parallel.tp = layout.tp;
  config.parallel.pp = layout.pp;
  config.parallel.sp = layout.sp;
  config.parallel.pp_schedule = layout.schedule;
  config.parallel.variable_seq_lengths = layout.pp > 1;
  config.parallel.world_size = layout.tp * layout.pp * layout.dp;
  config.optimizer.use_distributed_optimizer = layout.sharded;
  config.schedule.lr = 3e-3;
  config.schedule.lr_decay_style = "linear";
  config.train.micro_batch_size = layout.micro_batch;
  config.train.global_batch_size = 8;
  config.train.train_iters = 6;
  config.train.dtype = dtype;
  return plan::resolve(config);
}

BatchOptions batch_options(const plan::ResolvedRun& run) {
  return {.seq_length = run.config.data.seq_length,
          .pad_to_longest = true,
          .unit = 8,
          .token_types = run.shape.token_types > 0,
          .vocab = run.shape.vocab};
}

/// Losses of the steps, and of an evaluation afterwards its loss and logits.
struct Course {
  std::vector<double> losses;
  std::vector<float> logits;
};

Course course_of(const Layout& layout, const tasks::TaskForm& form, bool bert) {
  const plan::ResolvedRun run = run_of(layout, form, bert);
  const ToyTask task(form, 19, 5);  // of which the last microbatches have none
  Course course;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    train::Engine engine(run, world, at::kCPU);
    const TaskBatches batches(task, form, batch_options(run));
    SampleOrder order(19, 2.2, 3);
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto places =
          plan::batch_plan(step * 8, 8, layout.micro_batch, layout.dp, engine.context.samples().rank()).microbatches;
      const auto result = engine.step(
          static_cast<int>(places.size()),
          [&](std::size_t m) {
            std::vector<Item> items, all;
            for (const std::int64_t place : places[m]) items.push_back(order.at(place));
            for (std::int64_t k = 0; k < 8; ++k) all.push_back(order.at(step * 8 + k));
            return batches.get(items, batches.row_length(all));
          },
          run.learning_rate.at(step * 8));
      if (world.rank() == 0) course.losses.push_back(result.loss);
    }
    const TaskLogits logits = evaluate(engine, run, batches);
    if (world.rank() == 0) {
      course.losses.push_back(logits.loss);
      course.logits = logits.values;
    }
  });
  return course;
}

void expect_equal_in_layouts(const char* task, bool bert, const std::vector<Layout>& layouts) {
  const tasks::TaskForm form = tasks::task_form(tasks::task_kind_of(task));
  const Course one = course_of({.micro_batch = 2}, form, bert);
  ASSERT_EQ(one.losses.size(), 7u);
  for (const Layout& layout : layouts) {
    const Course other = course_of(layout, form, bert);
    const std::string name = concat(task, " tp ", layout.tp, " pp ", layout.pp, " dp ", layout.dp, " sp ", layout.sp);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_LE(std::abs(other.losses[i] - one.losses[i]), 1e-10 * one.losses[i]) << name << ", loss " << i;
    ASSERT_EQ(other.logits.size(), one.logits.size());
    for (std::size_t i = 0; i < one.logits.size(); ++i) {
      if (other.logits[i] == one.logits[i]) continue;  // infinite ones too
      EXPECT_LE(std::abs(other.logits[i] - one.logits[i]), 1e-6 * std::max(1.0f, std::abs(one.logits[i])))
          << name << ", logit " << i;
    }
  }
}

TEST(Layouts, ClassesAreLearnedAlike) {
  expect_equal_in_layouts("mnli", true,
                          {{.tp = 2, .sp = true, .micro_batch = 2},
                           {.tp = 2, .dp = 2},
                           {.dp = 4, .sharded = true, .micro_batch = 2},
                           {.pp = 2, .dp = 2},
                           {.tp = 2, .pp = 2, .sp = true, .schedule = "zb-h1"}});
}

TEST(Layouts, AGptsLastTokenIsReadAlike) {
  expect_equal_in_layouts("mnli", false, {{.tp = 2, .sp = true, .micro_batch = 4}, {.pp = 2, .dp = 2}});
}

TEST(Layouts, OptionsAreLearnedAlike) {
  expect_equal_in_layouts("race", true, {{.tp = 2, .dp = 2, .sp = true}, {.pp = 2, .micro_batch = 4}});
}

TEST(Layouts, SpansAreLearnedAlike) {
  expect_equal_in_layouts("squad1", true, {{.tp = 2, .dp = 2, .sp = true}, {.tp = 2, .pp = 2, .micro_batch = 2}});
}

TEST(SampleOrder, EachEpochHasEverySampleOnceInAnOrderOfItsOwn) {
  SampleOrder order(50, 2.5, 9), other(50, 2.5, 10);
  EXPECT_EQ(order.total(), 125);
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> samples;
    for (std::int64_t k = 0; k < 50; ++k) {
      const Item item = order.at(epoch * 50 + k);
      EXPECT_EQ(item.id, epoch * 50 + k);
      samples.push_back(item.sample);
    }
    EXPECT_EQ(std::set<std::int64_t>(samples.begin(), samples.end()).size(), 50u);
    epochs.push_back(samples);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(order.at(0).sample * 50 + order.at(1).sample, other.at(0).sample * 50 + other.at(1).sample);
  EXPECT_EQ(order.at(3).sample, epochs[0][3]);  // back in an epoch that is over
  EXPECT_NE(order.at(124).sample, Item::kNone);
  EXPECT_EQ(order.at(125).sample, Item::kNone);
  EXPECT_EQ(steps_of(50, 2.5, 8), 16);
  EXPECT_EQ(steps_of(50, 0, 8), 0);
}

TEST(TaskBatches, AnIdThatTheModelDoesNotKnowIsRefused) {
  const tasks::TaskForm form = tasks::task_form(tasks::TaskKind::Mnli);
  const ToyTask task(form, 4, 5);
  const std::vector<Item> items{{.sample = 0, .id = 0}};
  const TaskBatches batches(task, form, {.seq_length = 24, .vocab = 12});
  EXPECT_THROW(batches.get(items, 24), ConfigError);
}

const SeedOrigin kOrigin{.recipe = "the recipe", .inputs = {{"file a", "1"}, {"tokenizer", "2"}}};

/// One seed, from scratch in `folder`; on one rank, or on this one of `world`.
std::optional<SeedResult> learn(
    const std::filesystem::path& folder, const plan::ResolvedRun& base, double epochs,
    const train::StopRequested& stop = [] { return false; }, const comm::Group& world = {}) {
  plan::ResolvedRun run = base;
  run.config.train.out = folder.string();
  run.config.train.eval_interval = 8;
  run.config.log.progress = "off";
  config::TaskConfig task;
  task.name = "mnli";
  task.epochs = epochs;
  TaskData data{.kind = tasks::TaskKind::Mnli, .train = {}, .valid = {}};
  data.train = std::make_unique<ToyTask>(data.form(), 160, 5);
  data.valid = std::make_unique<ToyTask>(data.form(), 60, 6);
  data.further.push_back({.name = "again", .folder = "test", .task = std::make_unique<ToyTask>(data.form(), 60, 6)});
  run.config.train.train_iters = steps_of(160, epochs, 8);
  run.learning_rate.decay = plan::LrDecay::Constant;
  return run_seed(run, task, data, kOrigin, world, at::kCPU, stop, /*quiet=*/true);
}

TEST(SeedRun, LearnsKeepsTheBestWeightsAndPredictsWithThem) {
  const TemporaryFolder folder;
  kernels::configure_thread(1);
  plan::ResolvedRun run = run_of({.micro_batch = 8}, tasks::task_form(tasks::TaskKind::Mnli), true, "fp32");
  run.config.model.hidden_dropout = run.config.model.attention_dropout = 0;
  const auto result = learn(folder.path(), run, 2);
  ASSERT_TRUE(result);
  EXPECT_GT(result->metrics[0].value, 90) << "a class that one token says";
  const auto read = read_result(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->metrics, result->metrics);
  EXPECT_EQ(read->origin.recipe, kOrigin.recipe);
  EXPECT_EQ(read->origin.inputs, kOrigin.inputs);
  EXPECT_EQ(read->iteration, result->iteration);
  EXPECT_EQ(read_logits(folder.path(), 180).size(), 180u);
  EXPECT_THROW(read_logits(folder.path(), 179), ConfigError);
  // The test set is the validation set: what the checkpoint predicts of it is what was kept.
  EXPECT_EQ(read_file(folder.path() / "test/predictions.tsv"), read_file(folder.path() / "predictions.tsv"));
  EXPECT_EQ(read_logits(folder.path(), 180, "test"), read_logits(folder.path(), 180));
  for (const auto& further : {result->further, read->further}) {
    ASSERT_EQ(further.size(), 1u);
    EXPECT_EQ(further[0].set, "again");
    EXPECT_EQ(further[0].metrics, result->metrics);
  }
  // The weights in the folder alone, without training: the same.
  const TemporaryFolder again;
  run.config.checkpoint.load = folder.path().string();
  EXPECT_TRUE(check_weights(folder.path(), run).empty());
  const auto evaluated = learn(again.path(), run, 0);
  ASSERT_TRUE(evaluated);
  EXPECT_EQ(evaluated->metrics, result->metrics);
}

/// What a seed has left; the losses of metrics.jsonl in their order.
struct Left {
  std::string result, logits, predictions;
  std::vector<std::pair<std::int64_t, double>> losses;
};

Left left_in(const std::filesystem::path& folder) {
  Left left{.result = read_file(folder / "result.json"),
            .logits = read_file(folder / "valid_logits.f32"),
            .predictions = read_file(folder / "test/predictions.tsv"),
            .losses = {}};
  std::istringstream lines(read_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    left.losses.emplace_back(object.at("iteration"), object.at(object.contains("loss") ? "loss" : "valid_loss"));
  }
  return left;
}

/// Stops, or kills, a run at each of `steps` and lets it resume; expects what it leaves where nothing happens.
void expect_going_on(const char* dtype, std::initializer_list<int> steps) {
  plan::ResolvedRun run = run_of({.micro_batch = 4}, tasks::task_form(tasks::TaskKind::Mnli), true, dtype);
  run.config.checkpoint.save_interval = 5;
  run.config.checkpoint.async_save = false;  // what was saved before the end is there
  const TemporaryFolder whole;
  ASSERT_TRUE(learn(whole.path(), run, 1));
  const Left expected = left_in(whole.path());
  EXPECT_EQ(expected.losses.size(), 20u + 3u);
  EXPECT_LT(read_result(whole.path())->iteration, 20);  // the test set, which is the validation set, by the best ones
  EXPECT_EQ(expected.predictions, read_file(whole.path() / "predictions.tsv"));
  for (const int step : steps) {
    for (const bool killed : {false, true}) {
      SCOPED_TRACE(concat(dtype, killed ? " killed at step " : " stopped at step ", step));
      const TemporaryFolder folder;
      int asked = 0, again = 0;
      const auto stop = [&] {
        if (++asked == step && killed) throw std::runtime_error("killed");
        return asked == step;
      };
      if (killed)
        EXPECT_THROW(learn(folder.path(), run, 1, stop), std::runtime_error);
      else
        EXPECT_FALSE(learn(folder.path(), run, 1, stop));
      EXPECT_FALSE(read_result(folder.path()));
      ASSERT_TRUE(learn(folder.path(), run, 1, [&] { return ++again < 0; }));
      EXPECT_EQ(again, 20 - (killed ? (step - 1) / 5 * 5 : step)) << "no step that was saved is done again";
      const Left left = left_in(folder.path());
      EXPECT_EQ(left.losses, expected.losses);
      EXPECT_EQ(left.result, expected.result);
      EXPECT_EQ(left.logits, expected.logits);
      EXPECT_EQ(left.predictions, expected.predictions);
      EXPECT_FALSE(std::filesystem::exists(folder.path() / "state"));
    }
  }
}

TEST(SeedRun, GoesOnFromWhereItWasStoppedOrKilledToTheSameBits) {
  kernels::configure_thread(1);
  expect_going_on("fp32", {3, 13, 16, 20});  // before the first state, between, where a validation is due, at the end
  expect_going_on("bf16", {13});
}

TEST(SeedRun, NoLayoutShowsInIt) {  // with dropout, whose numbers depend on the length of rows
  std::vector<Left> left;
  for (const Layout& layout : {Layout{.micro_batch = 8}, Layout{.micro_batch = 2}, Layout{.dp = 2, .sharded = true}}) {
    const TemporaryFolder folder;
    const auto run = run_of(layout, tasks::task_form(tasks::TaskKind::Mnli), true);
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      EXPECT_TRUE(learn(
          folder.path(), run, 1.3, [] { return false; }, world));
    });
    left.push_back(left_in(folder.path()));
    EXPECT_EQ(left.back().predictions, left.front().predictions);
    ASSERT_EQ(left.back().losses.size(), 26u + 4u);
    for (std::size_t i = 0; i < left.front().losses.size(); ++i)
      EXPECT_NEAR(left.back().losses[i].second, left.front().losses[i].second, 1e-10) << i;
  }
}

TEST(SeedRun, WeightsThatAreNoNumbersAreNeverTheBest) {
  kernels::configure_thread(1);
  plan::ResolvedRun run = run_of({.micro_batch = 8}, tasks::task_form(tasks::TaskKind::Mnli), true, "fp32");
  plan::ResolvedRun broken = run;
  broken.learning_rate.peak = 1e30;
  const TemporaryFolder nothing, something;
  EXPECT_THROW(learn(nothing.path(), broken, 1), std::runtime_error);
  EXPECT_FALSE(read_result(nothing.path()));
  EXPECT_FALSE(checkpoint::has_checkpoint(nothing.path() / "checkpoints"))
      << "one answer in three is right all the same";
  // What was found before the weights broke is kept.
  int asked = 0;
  ASSERT_FALSE(learn(something.path(), run, 1, [&] { return ++asked == 10; }));
  const auto result = learn(something.path(), broken, 1);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->iteration, 8);
  EXPECT_TRUE(std::isfinite(result->loss));
  for (const float logit : read_logits(something.path(), 180)) ASSERT_TRUE(std::isfinite(logit));
}

TEST(SeedRun, DoesNotGoOnFromAnotherRecipe) {
  const TemporaryFolder folder;
  kernels::configure_thread(1);
  const auto run = run_of({.micro_batch = 8}, tasks::task_form(tasks::TaskKind::Mnli), true, "fp32");
  int asked = 0;
  EXPECT_FALSE(learn(folder.path(), run, 1, [&] { return ++asked > 3; }));
  EXPECT_FALSE(finished_result(folder.path(), kOrigin));
  EXPECT_TRUE(same_recipe("[task]\nvalid = \"dev.tsv\"\ntest = \"\"\n", "[task]\nvalid = [\"dev.tsv\"]\ntest = []\n"));
  EXPECT_FALSE(same_recipe("[task]\nvalid = \"dev.tsv\"\n", "[task]\nvalid = [\"dev.tsv\", \"b.tsv\"]\n"));
  EXPECT_THROW(finished_result(folder.path(), {.recipe = "another"}), ConfigError);
  EXPECT_FALSE(finished_result(folder.path() / "nowhere", {.recipe = "another"}));
}

TEST(SeedRun, DoesNotGoOnFromOtherFilesOfTheSameNames) {
  const TemporaryFolder folder;
  kernels::configure_thread(1);
  const auto run = run_of({.micro_batch = 8}, tasks::task_form(tasks::TaskKind::Mnli), true, "fp32");
  SeedOrigin other = kOrigin, unknown = kOrigin;
  other.inputs["file a"] = "3";
  unknown.inputs = {{"file b", "4"}};  // an earlier version has kept nothing of it
  const auto expect_refused = [&] {
    try {
      finished_result(folder.path(), other);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("file a"), std::string::npos) << text;
      EXPECT_EQ(text.find("tokenizer\n"), std::string::npos) << text;
    }
  };
  int asked = 0;
  EXPECT_FALSE(learn(folder.path(), run, 1, [&] { return ++asked > 3; }));
  expect_refused();
  EXPECT_FALSE(finished_result(folder.path(), unknown));
  ASSERT_TRUE(learn(folder.path(), run, 1));
  expect_refused();
  EXPECT_TRUE(finished_result(folder.path(), kOrigin));
  EXPECT_TRUE(finished_result(folder.path(), unknown));
}

TEST(Weights, ClassesInAnotherOrderAreRefused) {
  const TemporaryFolder folder;
  kernels::configure_thread(1);
  const auto run = run_of({.micro_batch = 8}, tasks::task_form(tasks::TaskKind::Mnli), true, "fp32");
  ASSERT_TRUE(learn(folder.path(), run, 0));
  const std::vector<std::string> labels = tasks::task_labels(tasks::TaskKind::Mnli);
  EXPECT_NO_THROW(check_labels(folder.path(), labels));
  EXPECT_THROW(check_labels(folder.path(), {labels[1], labels[0], labels[2]}), ConfigError);
  EXPECT_NO_THROW(check_labels(folder.path(), {"a", "b", "c"})) << "other classes";
}

TEST(Weights, OthersThanThoseOfTheHeadMustBeThere) {
  const TemporaryFolder folder;
  kernels::configure_thread(1);
  const auto form = tasks::task_form(tasks::TaskKind::Mnli);
  const auto run = run_of({.micro_batch = 8}, form, true, "fp32");
  ASSERT_TRUE(learn(folder.path(), run, 0));
  plan::ResolvedRun more = run;
  more.shape.num_layers = more.config.model.num_layers = 3;
  EXPECT_THROW(check_weights(folder.path(), more), ConfigError);
  plan::ResolvedRun spans = run_of({}, tasks::task_form(tasks::TaskKind::Squad1), true, "fp32");
  const std::vector<std::string> said = check_weights(folder.path(), spans);
  ASSERT_GE(said.size(), 2u);
  EXPECT_NE(said[0].find("of another task"), std::string::npos) << said[0];
  EXPECT_EQ(said[1], "initialized: task_head.bias, task_head.weight");
}

}  // namespace
}  // namespace megatron::finetune
