#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/bench/bench.h"
#include "app/flags.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/data/files/text_reader.h"
#include "megatron/text/learn/train_bpe.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> input;
  std::vector<std::string> tokenizer;
  std::int64_t vocab_size = 32000;
  int threads = 0;
  int repeats = 5;
  std::int64_t one_character_mb = 0;
  bool json = false;

  void visit(auto& v) {
    v("input", input,
      "JSONL or plain text to encode and to learn from, also .gz, .zst and .xz; none: only --one-character-mb.");
    v("tokenizer", tokenizer, "Tokenizers to encode with; none: the one that was just learned.");
    v("vocab_size", vocab_size, "Tokens of byte-level BPE to learn; 0: none.");
    v("threads", threads, "Threads that count while learning; 0: one per core. Encoding takes one.");
    v("repeats", repeats, "Timed rounds; the median counts.");
    v("one_character_mb", one_character_mb, "Also encode texts of so many MB of one character each.");
    v("json", json, "Print one JSON object on stdout.");
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
  return {median(wall), median(thread)};
}

/// Processor seconds for texts that are one character again and again: nothing may take longer the longer a word is.
Json one_character(const text::Tokenizer& tokenizer, std::int64_t bytes) {
  using namespace std::string_view_literals;
  const std::pair<const char*, std::string_view> characters[] = {
      {"letter", "a"sv},     {"space", " "sv},          {"line end", "\n"sv},  {"digit", "0"sv},
      {"sign", "#"sv},       {"full stop", "."sv},      {"bracket", "<"sv},    {"accented", "é"sv},
      {"cyrillic", "ж"sv},   {"combining", "\u0301"sv}, {"ideograph", "日"sv}, {"emoji", "😀"sv},
      {"zero byte", "\0"sv}, {"not UTF-8", "\xFF"sv}};
  Json seconds;
  for (const auto& [name, character] : characters) {
    std::string text;
    while (static_cast<std::int64_t>(text.size()) < bytes) text += character;
    std::vector<std::int32_t> ids;
    text::Encoder encoder = tokenizer.encoder();
    seconds[name] = median_of(1, [&] { encoder.encode_append(text, ids, text::Specials::Recognised); }).thread_s;
  }
  return seconds;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    if (options.input.empty()) return;
    data::TextReader reader({.inputs = options.input});
    for (std::string document; reader.next(document); documents_.push_back(document))
      megabytes_ += static_cast<double>(document.size()) * 1e-6;
  }

  double megabytes() const { return megabytes_; }

  /// Learns, and adds what it took to `report`.
  text::Tokenizer train(Json& report) const {
    text::Vocabulary learned;
    const int threads = threads_of(options_.threads);
    const Timing timing = median_of(options_.repeats, [&] {
      std::size_t next = 0;
      const auto pieces = text::count_pieces(
          [&](std::string& document) {
            if (next == documents_.size()) return false;
            document = documents_[next++];
            return true;
          },
          threads);
      learned = text::train_bpe(pieces, {.vocab_size = options_.vocab_size});
    });
    report["train_vocab_size"] = learned.tokens.size();
    report["train_threads"] = threads;
    report["train_s"] = timing.wall_s;
    return text::Tokenizer(std::move(learned));
  }

  Json encode(const std::string& name, const text::Tokenizer& tokenizer) const {
    Json report{{"tokenizer", name}, {"fingerprint", tokenizer.fingerprint()}};
    if (!documents_.empty()) rates(tokenizer, report);
    if (options_.one_character_mb > 0)
      report["one_character_s"] = one_character(tokenizer, options_.one_character_mb * 1'000'000);
    return report;
  }

 private:
  void rates(const text::Tokenizer& tokenizer, Json& report) const {
    text::Encoder encoder = tokenizer.encoder();
    std::vector<std::int32_t> ids;
    const Timing encode = median_of(options_.repeats, [&] {
      ids.clear();
      for (const std::string& document : documents_) encoder.encode_append(document, ids);
    });
    std::size_t decoded = 0;
    const Timing decode = median_of(options_.repeats, [&] { decoded = tokenizer.decode(ids).size(); });
    report["tokens"] = ids.size();
    report["decoded_bytes"] = decoded;
    report["encode_mb_per_s"] = megabytes_ / encode.wall_s;
    report["encode_mb_per_core_s"] = megabytes_ / encode.thread_s;
    report["decode_mb_per_core_s"] = megabytes_ / decode.thread_s;
  }

  const Options& options_;
  std::vector<std::string> documents_;
  double megabytes_ = 0;
};

}  // namespace

int bench_tokenizer(const Args& args) {
  Options options;
  no_words(config::parse_command_line(options, args, "megatron bench tokenizer --input F… [OPTION]…"));
  if (options.input.empty() && (options.one_character_mb == 0 || options.vocab_size != 0))
    throw ConfigError(
        rule_got_fix("--input, or --one-character-mb with --vocab-size 0, must be given.", "nothing", "--input FILE"));
  if (options.repeats < 1)
    throw ConfigError(rule_got_fix("--repeats must be 1 or more.", concat(options.repeats), "--repeats 1"));
  if (options.vocab_size == 0 && options.tokenizer.empty())
    throw ConfigError(rule_got_fix("--tokenizer, or a --vocab-size to learn, must be given.", "--vocab-size 0 alone",
                                   "--tokenizer FOLDER"));
  if (options.one_character_mb < 0 || options.one_character_mb > 1024)
    throw ConfigError(rule_got_fix("--one-character-mb must be 0 to 1024.", concat(options.one_character_mb),
                                   "--one-character-mb 0 (the default)"));
  threads_of(options.threads);

  const Bench bench(options);
  Json report{{"text_mb", bench.megabytes()}, {"encode", Json::array()}};
  std::optional<text::Tokenizer> learned;
  if (options.vocab_size > 0) learned = bench.train(report);
  if (options.tokenizer.empty()) report["encode"].push_back(bench.encode("learned", *learned));
  for (const std::string& path : options.tokenizer)
    report["encode"].push_back(bench.encode(path, text::Tokenizer::load(path)));
  if (options.json) {
    print_json(report);
    return kDone;
  }
  const auto print_fields = [](const Json& object) {
    for (const auto& [name, value] : object.items())
      if (!value.is_array()) print("{:22} {}\n", name, value.dump());
  };
  print_fields(report);
  for (const Json& tokenizer : report["encode"]) print_text("\n"), print_fields(tokenizer);
  return kDone;
}

}  // namespace megatron::app
