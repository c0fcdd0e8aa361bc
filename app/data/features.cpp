#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/data/jobs.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/outputs.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/run/tokenizer.h"
#include "megatron/tasks/squad_features.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr const char* kFeaturesUsage =
    "megatron data features --task mnli|qqp|squad1|squad2|race --input F --tokenizer T [OPTION]…\n\n"
    "What BERT reads of the examples of a task, [CLS] first [SEP] second [SEP], and how long it takes to make. With\n"
    "--output each row becomes a line of JSON.";

struct FeaturesFlags {
  std::string task, input, tokenizer, tokenizer_type, output;
  int seq_length = 0;
  int doc_stride = 128;
  int max_query_length = 0;
  int threads = 0;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v.title("what is read");
    v("task", task, "Task.", config::Required(), config::Choices({"mnli", "qqp", "squad1", "squad2", "race"}));
    v("input", input, "The task's file as it is published; race: also a folder of .txt files.", config::Required());
    v.title("what becomes of it");
    v("tokenizer", tokenizer, kTokenizerHelp, "tokenizer-model", config::Required());
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("seq_length", seq_length, "Maximum tokens per row; 0: 128 for mnli and qqp, 384 for squad, 512 for race.");
    v("doc_stride", doc_stride, "squad: tokens from the beginning of one window of a context to the next.");
    v("max_query_length", max_query_length, "Maximum tokens per question; 0: 64 for squad, 128 for race.");
    v.title("how it is done");
    v("threads", threads, "Threads that tokenize; 0: one per core.");
    v.title("what is written");
    v("output", output, "File of JSON lines to write: id, tokens, types and the target of each row.");
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print the result as one JSON object.");
  }
};

/// The rows of a task, whatever it is.
struct Rows {
  std::int64_t examples = 0;
  std::size_t count = 0;
  int seq_length = 0;
  std::function<std::int32_t(std::size_t row, std::span<std::int32_t> ids, std::span<std::int32_t> types)> fill = {};
  std::function<nlohmann::ordered_json(std::size_t row)> describe = {};
  double read_s = 0, encode_s = 0;
};

/// The examples, which rows.describe keeps alive, and the time that reading them takes.
template <class Examples>
std::shared_ptr<const Examples> read_examples(const std::function<Examples()>& read, Rows& rows) {
  const Stopwatch watch;
  auto examples = std::make_shared<const Examples>(read());
  rows.read_s = watch.seconds();
  return examples;
}

Rows glue_rows(const FeaturesFlags& flags, tasks::GlueTask task, const text::Tokenizer& tokenizer, int threads) {
  Rows rows{.seq_length = flags.seq_length > 0 ? flags.seq_length : 128};
  const auto examples = read_examples<tasks::PairExamples>([&] { return tasks::read_glue(flags.input, task); }, rows);
  const Stopwatch watch;
  const auto pairs = std::make_shared<const tasks::PairRows>(
      tasks::pair_rows(*examples, tokenizer, tasks::bert_frame(tokenizer), rows.seq_length, threads));
  rows.encode_s = watch.seconds();
  rows.examples = static_cast<std::int64_t>(examples->examples.size());
  rows.count = pairs->size();
  rows.fill = [pairs](auto row, auto ids, auto types) { return pairs->fill(row, ids, types); };
  rows.describe = [examples](std::size_t row) {
    const tasks::PairExample& example = examples->examples[row];
    return nlohmann::ordered_json{{"id", example.id}, {"label", example.label}};
  };
  return rows;
}

Rows race_rows(const FeaturesFlags& flags, const text::Tokenizer& tokenizer, int threads) {
  Rows rows{.seq_length = flags.seq_length > 0 ? flags.seq_length : 512};
  const auto examples = read_examples<tasks::RaceExamples>([&] { return tasks::read_race(flags.input); }, rows);
  const Stopwatch watch;
  const int question_length = flags.max_query_length > 0 ? flags.max_query_length : 128;
  const auto choices = std::make_shared<const tasks::PairRows>(tasks::choice_rows(
      *examples, tokenizer, tasks::bert_frame(tokenizer), rows.seq_length, question_length, threads));
  rows.encode_s = watch.seconds();
  rows.examples = static_cast<std::int64_t>(examples->questions.size());
  rows.count = choices->size();
  rows.fill = [choices](auto row, auto ids, auto types) { return choices->fill(row, ids, types); };
  rows.describe = [examples](std::size_t row) {
    const tasks::RaceQuestion& question = examples->questions[row / tasks::RaceQuestion::kOptions];
    return nlohmann::ordered_json{
        {"id", question.id}, {"option", row % tasks::RaceQuestion::kOptions}, {"label", question.label}};
  };
  return rows;
}

Rows squad_rows(const FeaturesFlags& flags, tasks::SquadVersion version, const text::Tokenizer& tokenizer,
                int threads) {
  Rows rows{.seq_length = flags.seq_length > 0 ? flags.seq_length : 384};
  const auto examples =
      read_examples<tasks::SquadExamples>([&] { return tasks::read_squad(flags.input, version); }, rows);
  const Stopwatch watch;
  const tasks::SquadFeatureOptions options{
      .seq_length = rows.seq_length,
      .doc_stride = flags.doc_stride,
      .max_query_length = flags.max_query_length > 0 ? flags.max_query_length : 64};
  const auto features = std::make_shared<const tasks::SquadFeatures>(*examples, tokenizer, options, threads);
  rows.encode_s = watch.seconds();
  rows.examples = static_cast<std::int64_t>(examples->questions.size());
  rows.count = features->windows().size();
  rows.fill = [features](auto row, auto ids, auto types) { return features->fill(row, ids, types); };
  rows.describe = [examples, features](std::size_t row) {
    const tasks::SquadWindow& window = features->windows()[row];
    const tasks::SquadQuestion& question = examples->questions[static_cast<std::size_t>(window.question)];
    const tasks::SpanTarget target =
        question.answers.empty() ? tasks::SpanTarget{} : features->target(row, question.answers[0]);
    return nlohmann::ordered_json{{"id", question.id},     {"first", window.first},
                                  {"count", window.count}, {"context", features->context_position(row)},
                                  {"start", target.start}, {"end", target.end}};
  };
  return rows;
}

Rows rows_of(const FeaturesFlags& flags, const text::Tokenizer& tokenizer, int threads) {
  if (flags.task == "mnli") return glue_rows(flags, tasks::GlueTask::Mnli, tokenizer, threads);
  if (flags.task == "qqp") return glue_rows(flags, tasks::GlueTask::Qqp, tokenizer, threads);
  if (flags.task == "squad1") return squad_rows(flags, tasks::SquadVersion::V1, tokenizer, threads);
  if (flags.task == "squad2") return squad_rows(flags, tasks::SquadVersion::V2, tokenizer, threads);
  if (flags.task == "race") return race_rows(flags, tokenizer, threads);
  throw ConfigError(rule_got_fix("--task must be mnli, qqp, squad1, squad2 or race.", flags.task, "--task mnli"));
}

/// Makes every row as a batch would, and writes them where there is a file. Returns their tokens without padding.
std::int64_t make_rows(const Rows& rows, Progress::Mode mode, AtomicFile* output) {
  Progress progress("features", "rows", static_cast<std::int64_t>(rows.count),
                    output == nullptr ? Progress::Mode::Off : mode);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows.seq_length)), types(ids.size());
  std::int64_t tokens = 0;
  for (std::size_t row = 0; row < rows.count; ++row) {
    const std::int32_t length = rows.fill(row, ids, types);
    tokens += length;
    if (output == nullptr) continue;
    nlohmann::ordered_json line = rows.describe(row);
    line["ids"] = std::vector<std::int32_t>(ids.begin(), ids.begin() + length);
    line["types"] = std::vector<std::int32_t>(types.begin(), types.begin() + length);
    output->write(json_line(line));
    progress.update(static_cast<std::int64_t>(row + 1));
  }
  return tokens;
}

}  // namespace

int data_features(const Args& args) {
  FeaturesFlags flags;
  no_words(config::parse_command_line(flags, args, kFeaturesUsage));
  need_option(!flags.task.empty(), "--task", "mnli");
  need_option(!flags.input.empty(), "--input");
  need_option(!flags.tokenizer.empty(), "--tokenizer", "FOLDER");
  if (flags.seq_length < 0 || flags.max_query_length < 0)
    throw ConfigError(rule_got_fix("--seq-length and --max-query-length must be 0 or more.",
                                   concat(flags.seq_length, " and ", flags.max_query_length),
                                   "--seq-length 0 --max-query-length 0 (the task's usual lengths)"));
  constexpr int kMaxLength = 1 << 16;  // every row takes memory for its tokens before one is read
  if (flags.seq_length > kMaxLength || flags.max_query_length > kMaxLength)
    throw ConfigError(rule_got_fix(concat("--seq-length and --max-query-length must be at most ", kMaxLength, "."),
                                   concat(flags.seq_length, " and ", flags.max_query_length),
                                   "--seq-length 0 --max-query-length 0 (the task's usual lengths)"));
  const Progress::Mode mode = Progress::mode_of(flags.progress);
  const int threads = threads_of(flags.threads);
  const text::Tokenizer tokenizer = run::open_tokenizer(flags.tokenizer, flags.tokenizer_type);
  check_outputs({flags.output}, {flags.input});
  std::optional<AtomicFile> output;
  if (!flags.output.empty()) output.emplace(flags.output);
  const std::clock_t begin = std::clock();
  const Rows rows = rows_of(flags, tokenizer, threads);
  const Stopwatch watch;
  const std::int64_t tokens = make_rows(rows, mode, output ? &*output : nullptr);
  const double rows_s = watch.seconds();
  const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (output) output->commit();
  const nlohmann::ordered_json report = {{"task", flags.task},    {"examples", rows.examples},
                                         {"rows", rows.count},    {"seq_length", rows.seq_length},
                                         {"tokens", tokens},      {"threads", threads},
                                         {"read_s", rows.read_s}, {"encode_s", rows.encode_s},
                                         {"rows_s", rows_s},      {"cpu_s", cpu_s}};
  if (flags.json)
    print_json(report);
  else
    std::printf(
        "%s: %lld examples, %zu rows of at most %d tokens, %lld tokens in all; read %.3f s, encoded %.3f s, "
        "rows %.3f s\n",
        flags.task.c_str(), static_cast<long long>(rows.examples), rows.count, rows.seq_length,
        static_cast<long long>(tokens), rows.read_s, rows.encode_s, rows_s);
  return kDone;
}

}  // namespace megatron::app
