#include "megatron/tasks/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/config/tables/tasks.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/scores/squad_scores.h"
#include "megatron/tasks/task_info.h"
#include "tests/tasks/support.h"
#include "tests/testing/temporary_folder.h"

// Tasks as training sees them, and predictions out of their files.
namespace megatron::tasks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kQqp = "id\tquestion1\tquestion2\tis_duplicate\n4\ta b\tc\t1\n7\td\te f g\t0\n9\th\ti\t1\n";
constexpr const char* kRace =
    R"({"id": "r", "article": "a b c", "questions": ["x", "y _"], "options": [["a","b","c","d"], ["e","f","g","h"]],)"
    R"( "answers": ["B", "D"]})";

/// The task in `text`, as a file of the test's own.
std::unique_ptr<const Task> task_of(TaskKind kind, const std::string& text, TaskOptions options = {}) {
  const TemporaryFolder folder;
  write_file(folder.path() / "data", text);
  options.kind = kind;
  options.seq_length = 16;
  return open_task(folder.path() / "data", letter_tokenizer(), options);
}

TEST(Task, EveryRowOfTheTableIsATask) {
  for (const config::TaskRow& row : config::task_rows()) {
    const TaskKind kind = task_kind_of(row.name);
    const TaskInfo& info = task_info(kind);
    EXPECT_EQ(static_cast<std::int64_t>(task_labels(kind).size()), info.form.num_classes) << row.name;
    EXPECT_TRUE(info.open != nullptr && info.rows != nullptr && info.report != nullptr) << row.name;
    EXPECT_EQ(usual_seq_length(kind), row.seq_length);
    EXPECT_GE(info.form.rows, 1);
  }
  EXPECT_EQ(task_kind_of("race"), TaskKind::Race);
  EXPECT_EQ(config::usual_lengths(&config::TaskRow::seq_length),
            "128 for mnli and qqp, 384 for squad1 and squad2, 512 for race");
  EXPECT_EQ(config::usual_lengths(&config::TaskRow::query_length), "64 for squad1 and squad2, 128 for race");
}

TEST(Task, PairsAreSamplesOfOneRowWithAClass) {
  const auto task = task_of(TaskKind::Qqp, kQqp);
  ASSERT_EQ(task->size(), 3u);
  EXPECT_TRUE(task->labelled());
  EXPECT_EQ(task->target(1)[0], 0);
  EXPECT_EQ(task->length(1), 7);
  std::vector<std::int32_t> ids(8), types(8);
  EXPECT_EQ(task->fill(1, 0, ids, types), 7);
  EXPECT_THAT(ids, ElementsAre(2, 8, 3, 9, 10, 11, 3, 0));
  EXPECT_THAT(types, ElementsAre(0, 0, 0, 1, 1, 1, 1, 0));
  const std::vector<float> logits{0, 1, 0, 1, 1, 0};  // 1, 1, 0 of 1, 0, 1
  const auto scores = task->scores(logits);
  ASSERT_EQ(scores.metrics.size(), 2u);
  EXPECT_EQ(scores.metrics[0].name, "accuracy");
  EXPECT_NEAR(scores.metrics[0].value, 100.0 / 3, 1e-12);
  EXPECT_EQ(scores.metrics[1], (Metric{"f1", 50}));
  const auto files = task->predictions(logits, 0);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].name, "predictions.tsv");
  EXPECT_EQ(parse_glue_predictions(files[0].text, "p", parse_glue(kQqp, "q", GlueTask::Qqp), GlueTask::Qqp),
            (std::vector<std::int32_t>{1, 1, 0}));
}

TEST(Task, TheFirstExamplesMayBeEnough) {
  EXPECT_EQ(task_of(TaskKind::Qqp, kQqp, {.limit = 2})->size(), 2u);
  EXPECT_EQ(task_of(TaskKind::Race, kRace, {.limit = 1})->size(), 1u);
}

TEST(Task, WhatIsLearnedFromNeedsLabels) {
  const std::string test = "id\tquestion1\tquestion2\n4\ta\tb\n";
  EXPECT_FALSE(task_of(TaskKind::Qqp, test)->labelled());
  EXPECT_THAT(error_of([&] { task_of(TaskKind::Qqp, test, {.to_learn = true}); }), HasSubstr("label"));
  EXPECT_THAT(error_of([&] { task_of(TaskKind::Qqp, "id\tquestion1\tquestion2\n"); }), HasSubstr("must hold examples"));
  EXPECT_THAT(error_of([] { task_kind_of("cola"); }), HasSubstr("mnli, qqp, squad1, squad2, race"));
  EXPECT_THAT(error_of([] { task_kind_of("sqaud2"); }), HasSubstr("fix:  --task squad2"));
}

TEST(Task, AQuestionOfRaceIsFourRows) {
  const auto task = task_of(TaskKind::Race, kRace);
  ASSERT_EQ(task->size(), 2u);
  EXPECT_EQ(task->target(0)[0], 1);
  EXPECT_EQ(task->target(1)[0], 3);
  EXPECT_EQ(task->width(), 4u);
  std::vector<std::int32_t> ids(16), types(16);
  EXPECT_EQ(task->fill(1, 2, ids, types), task->length(1));
  EXPECT_EQ(ids[2], 5 + 6) << "the third option, g, stands where the question has its blank";
  const std::vector<float> logits{0, 9, 0, 0, 5, 0, 0, 0};
  EXPECT_THAT(task->scores(logits).metrics, ElementsAre(Metric{"accuracy", 50}));
  const auto files = task->predictions(logits, 0);
  RaceExamples examples;
  parse_race(kRace, "r", examples);
  EXPECT_EQ(parse_race_predictions(files.at(0).text, "p", examples), (std::vector<std::int32_t>{1, 0}));
}

TEST(Task, ASpansTargetIsItsTokensAndItsNullThresholdIsTuned) {
  const std::string squad = R"({"data": [{"paragraphs": [{"context": "a b c d", "qas": [)"
                            R"({"id": "1", "question": "x", "answers": [{"text": "b c", "answer_start": 2}]},)"
                            R"({"id": "2", "question": "y", "answers": []}]}]}]})";
  const auto task = task_of(TaskKind::Squad2, squad, {.max_query_length = 4, .to_learn = true});
  ASSERT_EQ(task->size(), 2u);
  // [CLS] x [SEP] a b c d [SEP]
  EXPECT_EQ(task->length(0), 8);
  EXPECT_EQ(task->target(0), (std::array<std::int64_t, 2>{4, 5}));
  EXPECT_EQ(task->target(1), (std::array<std::int64_t, 2>{0, 0}));
  ASSERT_EQ(task->width(), 32u);
  std::vector<float> logits(64, -9);
  const auto set = [&](std::size_t sample, std::size_t first, std::size_t last, float none) {
    logits[32 * sample] = logits[32 * sample + 16] = none;
    logits[32 * sample + first] = logits[32 * sample + 16 + last] = 5;
  };
  set(0, 4, 5, 6);  // null odds 2: answered, if the threshold is 2 or more
  set(1, 3, 3, 7);  // null odds 4
  const auto scores = task->scores(logits);
  EXPECT_THAT(scores.metrics, ElementsAre(Metric{"f1", 100}, Metric{"exact", 100}));
  EXPECT_EQ(scores.null_threshold, 2);
  EXPECT_THAT(scores.report, HasSubstr("best_f1_thresh"));
  const auto elsewhere = task->scores(logits, 1.5);  // found on another set: neither is answered
  EXPECT_THAT(elsewhere.metrics, ElementsAre(Metric{"f1", 50}, Metric{"exact", 50}));
  EXPECT_EQ(elsewhere.null_threshold, 1.5);
  EXPECT_THAT(elsewhere.report, HasSubstr("\"best_f1\": 100"));
  const auto files = task->predictions(logits, scores.null_threshold);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].text, "{\n    \"1\": \"b c\",\n    \"2\": \"\"\n}\n");
  EXPECT_THAT(task->predictions(logits, 0)[0].text, HasSubstr("\"1\": \"\""));
}

TEST(Task, RowsOfAGptEndWithTheTokenThatEndsATextInThePlaceOfBertsFrame) {
  const auto vocab = "<|endoftext|>\na\nb\n[UNK]\n";
  const text::Tokenizer tokenizer(text::parse_vocab_txt(vocab, "letters", text::BertNormalization()));
  const TemporaryFolder folder;
  write_file(folder.path() / "data", "id\tquestion1\tquestion2\tis_duplicate\n4\ta\tb b\t1\n");
  const auto task =
      open_task(folder.path() / "data", tokenizer, {.kind = TaskKind::Qqp, .frames_pairs = false, .seq_length = 16});
  std::vector<std::int32_t> ids(6), types(6);
  task->fill(0, 0, ids, types);
  EXPECT_THAT(ids, ElementsAre(0, 1, 0, 2, 2, 0));
}

TEST(Predictions, OfOtherExamplesAreRefusedByLine) {
  const PairExamples qqp = parse_glue(kQqp, "q", GlueTask::Qqp);
  const auto error = [&](const std::string& lines) {
    return error_of([&] { parse_glue_predictions("index\tprediction\n" + lines, "p.tsv", qqp, GlueTask::Qqp); });
  };
  EXPECT_THAT(error("4\t1\n8\t0\n9\t0\n"), HasSubstr("p.tsv, line 3"));
  EXPECT_THAT(error("4\tyes\n7\t0\n9\t0\n"), HasSubstr("p.tsv, line 2"));
  EXPECT_THAT(error("4\t1\n7\t0\n"), HasSubstr("each of 3"));
  EXPECT_THAT(error("4\t1\n7\t0\n9\t0\n10\t0\n"), HasSubstr("line 5"));
  EXPECT_THAT(error("4 1\n"), HasSubstr("a tab"));
  RaceExamples race;
  parse_race(kRace, "r", race);
  EXPECT_THAT(error_of([&] { parse_race_predictions(R"({"r-0": "E", "r-1": "A"})", "p", race); }),
              HasSubstr("A, B, C"));
  EXPECT_THAT(error_of([&] { parse_race_predictions(R"({"r-0": "A"})", "p", race); }), HasSubstr("every question"));
}

}  // namespace
}  // namespace megatron::tasks
