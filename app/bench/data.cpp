#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "app/bench/bench.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/data/preprocess/preprocess.h"
#include "megatron/data/samples/gpt_dataset.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

struct Options {
  std::vector<std::string> input;
  std::string tokenizer;
  std::int64_t seq_length = 1024, samples = 100000, fetches = 10000;
  int workers = 0;
  int repeats = 5;
  bool json = false;

  void visit(auto& v) {
    v("input", input, "JSONL or plain text to tokenize, also .gz, .zst and .xz.", config::Required());
    v("tokenizer", tokenizer, "Tokenizer folder or file.", config::Required());
    v("seq_length", seq_length, "Tokens per sample.");
    v("samples", samples, "Samples whose order is built.");
    v("fetches", fetches, "Samples to fetch, on one thread.");
    v("workers", workers, "Threads that tokenize; 0: one per core.");
    v("repeats", repeats, "Timed rounds; the median counts.");
    v("json", json, "Print one JSON object on stdout.");
  }

  void check() const {
    if (input.empty()) throw ConfigError(rule_got_fix("--input must be given.", "nothing", "--input FILE"));
    if (tokenizer.empty())
      throw ConfigError(rule_got_fix("--tokenizer must be given.", "nothing", "--tokenizer FOLDER"));
    if (samples < 1 || fetches < 1 || repeats < 1)
      throw ConfigError(rule_got_fix("--samples, --fetches and --repeats must be 1 or more.",
                                     concat(samples, ", ", fetches, ", ", repeats),
                                     "--samples 1 --fetches 1 --repeats 1"));
    if (workers < 0 || workers > 1024)
      throw ConfigError(rule_got_fix("--workers must be 0 to 1024.", concat(workers), "--workers 0"));
  }
};

/// A folder for what is measured, beside nothing of the user's; removed with all it holds.
class ScratchFolder {
 public:
  ScratchFolder() : path_((std::filesystem::temp_directory_path() / "megatron-bench-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

double median_seconds(int repeats, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const Stopwatch watch;
    work();
    seconds.push_back(watch.seconds());
  }
  return median(std::move(seconds));
}

/// Fetches samples one after another, as training does in its order.
void fetch(const data::GptDataset& dataset, std::int64_t samples) {
  const auto length = static_cast<std::size_t>(dataset.seq_length());
  std::vector<std::int64_t> tokens(length), labels(length), positions(length);
  std::vector<float> mask(length);
  for (std::int64_t i = 0; i < samples; ++i)
    dataset.get(i % dataset.size(), {.tokens = tokens, .labels = labels, .loss_mask = mask, .position_ids = positions});
}

nlohmann::ordered_json measure(const Options& options) {
  const auto tokenizer = text::Tokenizer::load(options.tokenizer);
  const data::TextEncoder encoder = data::encoder_of(tokenizer);
  const ScratchFolder scratch;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  data::PreprocessOptions preprocessing{.output_prefix = scratch / "tokens",
                                        .workers = options.workers == 0 ? cores : options.workers};
  preprocessing.text.inputs = options.input;
  data::PreprocessResult made;
  const double preprocess_s = median_seconds(options.repeats, [&] { made = data::preprocess(preprocessing, encoder); });

  data::GptDatasetSpec spec{.prefix = made.pairs[0].prefix, .split = "1"};
  spec.index.seq_length = options.seq_length;
  spec.index.num_samples = options.samples;
  int round = 0;
  const double index_s = median_seconds(options.repeats, [&] {  // each into an empty cache
    spec.cache_folder = scratch / concat("cache", round++);
    data::GptDataset::build(spec);
  });
  const data::GptDataset dataset(spec, {});
  const double fetch_s = median_seconds(options.repeats, [&] { fetch(dataset, options.fetches); });
  const auto text_mb = static_cast<double>(made.text_bytes) * 1e-6;
  const auto tokens = static_cast<double>(options.fetches * options.seq_length);
  return {{"benchmark", "data"},
          {"text_mb", text_mb},
          {"documents", made.pairs[0].documents},
          {"tokens", made.pairs[0].tokens},
          {"workers", preprocessing.workers},
          {"preprocess_s", preprocess_s},
          {"preprocess_mb_per_s", text_mb / preprocess_s},
          {"seq_length", options.seq_length},
          {"index_samples", dataset.size()},
          {"index_s", index_s},
          {"fetch_us_per_sample", 1e6 * fetch_s / static_cast<double>(options.fetches)},
          {"fetch_tokens_per_s", tokens / fetch_s}};
}

}  // namespace

int bench_data(const Args& args) {
  Options options;
  const auto words =
      config::parse_command_line(options, args, "megatron bench data --input F… --tokenizer T [OPTION]…");
  if (!words.empty())
    throw ConfigError(rule_got_fix("this job takes options alone.", words[0], concat("leave '", words[0], "' out")));
  options.check();
  const nlohmann::ordered_json report = measure(options);
  if (options.json)
    print_json(report);
  else
    for (const auto& [name, value] : report.items()) print("{:22} {}\n", name, value.dump());
  return kDone;
}

}  // namespace megatron::app
