#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/bench.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/data/text_reader.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/train_bpe.h"

namespace megatron::app {
namespace {

struct Options {
  std::vector<std::string> input;
  std::string tokenizer;
  std::int64_t vocab_size = 32000;
  int threads = 0;
  int repeats = 5;
  bool json = false;

  void visit(auto& v) {
    v("input", input, "JSONL or plain text to encode and to learn from, also .gz and .zst.");
    v("tokenizer", tokenizer, "Tokenizer to encode with; empty: the one that was just learned.");
    v("vocab_size", vocab_size, "Tokens to learn.");
    v("threads", threads, "Threads that count while learning; 0: one a core. Encoding takes one.");
    v("repeats", repeats, "Timed rounds; the median counts.");
    v("json", json, "Print JSON.");
  }
};

/// Processor time of this thread: what one core to itself would take, also where others use the machine.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Timing {
  double wall_s = 0, thread_s = 0;
};

Timing median_of(int repeats, const std::function<void()>& work) {
  std::vector<double> wall, thread;
  for (int i = 0; i < repeats; ++i) {
    const Stopwatch watch;
    const double start = thread_seconds();
    work();
    thread.push_back(thread_seconds() - start);
    wall.push_back(watch.seconds());
  }
  std::sort(wall.begin(), wall.end());
  std::sort(thread.begin(), thread.end());
  return {wall[wall.size() / 2], thread[thread.size() / 2]};
}

}  // namespace

int bench_tokenizer(const Args& args) {
  Options options;
  const auto words = config::parse_command_line(options, args, "megatron bench tokenizer --input F… [OPTION]…");
  if (!words.empty()) throw ConfigError(rule_got_fix("this job takes options alone.", words[0]));
  if (options.input.empty()) throw ConfigError(rule_got_fix("--input must be given.", "nothing"));
  if (options.repeats < 1) throw ConfigError(rule_got_fix("--repeats must be 1 or more.", concat(options.repeats)));
  if (options.threads == 0) options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (options.threads < 1 || options.threads > 1024)
    throw ConfigError(rule_got_fix("--threads must be 0 to 1024.", concat(options.threads)));

  std::vector<std::string> documents;
  double megabytes = 0;
  data::TextReader reader({.inputs = options.input});
  for (std::string document; reader.next(document); documents.push_back(document))
    megabytes += static_cast<double>(document.size()) * 1e-6;

  text::Vocabulary learned;
  const Timing train = median_of(options.repeats, [&] {
    std::size_t next = 0;
    const auto pieces = text::count_pieces(
        [&](std::string& document) {
          if (next == documents.size()) return false;
          document = documents[next++];
          return true;
        },
        options.threads);
    learned = text::train_bpe(pieces, {.vocab_size = options.vocab_size});
  });
  const auto tokenizer =
      options.tokenizer.empty() ? text::Tokenizer(learned) : text::Tokenizer::load(options.tokenizer);
  text::Encoder encoder = tokenizer.encoder();
  std::vector<std::int32_t> ids;
  const Timing encode = median_of(options.repeats, [&] {
    ids.clear();
    for (const std::string& document : documents) encoder.encode_append(document, ids);
  });
  std::size_t decoded = 0;
  const Timing decode = median_of(options.repeats, [&] { decoded = tokenizer.decode(ids).size(); });

  const nlohmann::ordered_json report{{"text_mb", megabytes},
                                      {"tokens", ids.size()},
                                      {"decoded_bytes", decoded},
                                      {"encode_mb_per_s", megabytes / encode.wall_s},
                                      {"encode_mb_per_core_s", megabytes / encode.thread_s},
                                      {"decode_mb_per_core_s", megabytes / decode.thread_s},
                                      {"train_vocab_size", learned.tokens.size()},
                                      {"train_threads", options.threads},
                                      {"train_s", train.wall_s}};
  if (options.json)
    print_json(report);
  else
    for (const auto& [name, value] : report.items()) std::printf("%-22s %s\n", name.c_str(), value.dump().c_str());
  return kDone;
}

}  // namespace megatron::app
