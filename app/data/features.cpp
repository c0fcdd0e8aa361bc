#include <algorithm>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/data/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/outputs.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/config/tables/tasks.h"
#include "megatron/tasks/task_info.h"
#include "megatron/text/open_tokenizer.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

std::string features_usage() {
  return "megatron data features --task " + config::task_choices() +
         " --input F --tokenizer T [OPTION]…\n\n"
         "What BERT reads of the examples of a task, [CLS] first [SEP] second [SEP], and how long it takes to make. "
         "With\n"
         "--output each row becomes a line of JSON.";
}

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
    v("task", task, "Task.", config::Required(), config::Choices(config::task_names()));
    v("input", input, "The task's file as it is published; race: also a folder of .txt files.", config::Required());
    v.title("what becomes of it");
    v("tokenizer", tokenizer, kTokenizerHelp, "tokenizer-model", config::Required());
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("seq_length", seq_length,
      "Maximum tokens per row; 0: " + config::usual_lengths(&config::TaskRow::seq_length) + ".");
    v("doc_stride", doc_stride, "squad: tokens from the beginning of one window of a context to the next.");
    v("max_query_length", max_query_length,
      "Maximum tokens per question; 0: " + config::usual_lengths(&config::TaskRow::query_length) + ".");
    v.title("how it is done");
    v("threads", threads, "Threads that tokenize; 0: one per core.");
    v.title("what is written");
    v("output", output, "File of JSON lines to write: id, tokens, types and the target of each row.");
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print the result as one JSON object.");
  }
};

/// Makes every row as a batch would, and writes them where there is a file. Returns their tokens without padding.
std::int64_t make_rows(const tasks::TaskRows& rows, int seq_length, Progress::Mode mode, AtomicFile* output) {
  Progress progress("features", "rows", static_cast<std::int64_t>(rows.count),
                    output == nullptr ? Progress::Mode::Off : mode);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(seq_length)), types(ids.size());
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
  no_words(config::parse_command_line(flags, args, features_usage()));
  need_option(!flags.task.empty(), "--task", config::task_names().front().c_str());
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
  const text::Tokenizer tokenizer = text::open_tokenizer(flags.tokenizer, flags.tokenizer_type);
  check_outputs({flags.output}, {flags.input});
  std::optional<AtomicFile> output;
  if (!flags.output.empty()) output.emplace(flags.output);
  const std::clock_t begin = std::clock();
  const tasks::TaskKind kind = tasks::task_kind_of(flags.task);
  const int seq_length = flags.seq_length > 0 ? flags.seq_length : tasks::usual_seq_length(kind);
  const tasks::TaskRows rows = tasks::task_info(kind).rows(flags.input, tokenizer,
                                                           {.kind = kind,
                                                            .seq_length = seq_length,
                                                            .doc_stride = flags.doc_stride,
                                                            .max_query_length = flags.max_query_length,
                                                            .threads = threads});
  const Stopwatch watch;
  const std::int64_t tokens = make_rows(rows, seq_length, mode, output ? &*output : nullptr);
  const double rows_s = watch.seconds();
  const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (output) output->commit();
  const nlohmann::ordered_json report = {{"task", flags.task},    {"examples", rows.examples},
                                         {"rows", rows.count},    {"seq_length", seq_length},
                                         {"tokens", tokens},      {"threads", threads},
                                         {"read_s", rows.read_s}, {"encode_s", rows.encode_s},
                                         {"rows_s", rows_s},      {"cpu_s", cpu_s}};
  if (flags.json)
    print_json(report);
  else
    print(
        "{}: {} examples, {} rows of at most {} tokens, {} tokens in all; read {:.3f} s, encoded {:.3f} s, "
        "rows {:.3f} s\n",
        flags.task, rows.examples, rows.count, seq_length, tokens, rows.read_s, rows.encode_s, rows_s);
  return kDone;
}

}  // namespace megatron::app
