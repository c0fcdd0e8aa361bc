#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/jobs.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/data/gpt_index.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/preprocess.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr const char* kPreprocessUsage =
    "megatron data preprocess --input F… --tokenizer T --output-prefix P [OPTION]…\n\n"
    "Text to tokens: P_KEY_document.bin and .idx, as Megatron-LM's preprocessing writes them.";

struct PreprocessFlags {
  std::vector<std::string> input;
  std::string tokenizer;
  std::string output_prefix;
  std::string json_key = "text";
  std::string format = "auto";
  std::int64_t piece_bytes = 4096;
  bool append_eod = false;
  int workers = 0;
  std::int64_t max_document_mb = 64;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v("input", input, "JSONL or plain text, also .gz and .zst; - reads standard input.");
    v("tokenizer", tokenizer, "Tokenizer folder or file (tokenizer.json; encoder.json + vocab.bpe).",
      "tokenizer-model");
    v("output_prefix", output_prefix, "Beginning of the names to write.");
    v("json_key", json_key, "Key of a JSON line that holds its text.", "json-keys");
    v("format", format,
      "auto (JSONL by name or content, else file), jsonl, lines (one document a line), paragraphs (blank lines "
      "separate documents), file (one document a file) or pieces (each file is cut).");
    v("piece_bytes", piece_bytes, "Longest document with --format pieces.");
    v("append_eod", append_eod, "End every document with the end-of-text token.");
    v("workers", workers, "Threads that tokenize; 0: one a core.");
    v("max_document_mb", max_document_mb, "Longest document, in 2^20 bytes.");
    v("progress", progress, "Progress with rate and ETA: auto, on, off.");
    v("json", json, "Print the result as a JSON object.");
  }
};

void need(bool given, const char* flag) {
  if (!given) throw ConfigError(rule_got_fix(concat(flag, " must be given."), "nothing"));
}

void reject_words(const std::vector<std::string>& words) {
  if (!words.empty()) throw ConfigError(rule_got_fix("this job takes options alone.", words[0]));
}

data::PreprocessOptions preprocess_options(const PreprocessFlags& flags, const text::Tokenizer& tokenizer) {
  if (flags.max_document_mb < 1 || flags.max_document_mb > 2048)
    throw ConfigError(rule_got_fix("--max-document-mb must be 1 to 2048.", concat(flags.max_document_mb)));
  if (flags.workers < 0 || flags.workers > 1024)
    throw ConfigError(rule_got_fix("--workers must be 0 to 1024.", concat(flags.workers)));
  if (flags.piece_bytes < 4 || flags.piece_bytes > flags.max_document_mb << 20)
    throw ConfigError(
        rule_got_fix("--piece-bytes must be 4 to the bytes of --max-document-mb.", concat(flags.piece_bytes)));
  data::PreprocessOptions options;
  options.text.inputs = flags.input;
  options.text.format = data::text_format_of(flags.format);
  options.text.piece_bytes = static_cast<std::size_t>(flags.piece_bytes);
  options.text.json_key = flags.json_key;
  options.text.max_document_bytes = static_cast<std::size_t>(flags.max_document_mb) << 20;
  options.output_prefix = flags.output_prefix;
  options.append_eod = flags.append_eod;
  if (flags.append_eod) options.eod = tokenizer.eod_id();
  options.workers =
      flags.workers != 0 ? flags.workers : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return options;
}

int preprocess(const Args& args) {
  PreprocessFlags flags;
  reject_words(config::parse_command_line(flags, args, kPreprocessUsage));
  need(!flags.input.empty(), "--input");
  need(!flags.tokenizer.empty(), "--tokenizer");
  need(!flags.output_prefix.empty(), "--output-prefix");
  const auto mode = Progress::mode_of(flags.progress);
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.tokenizer);
  const data::PreprocessOptions options = preprocess_options(flags, tokenizer);
  const data::TextEncoder encoder = data::encoder_of(tokenizer);

  const Stopwatch since_start;
  std::unique_ptr<Progress> progress;
  const auto result =
      data::preprocess(options, encoder, [&](std::int64_t done, std::int64_t total, std::int64_t documents) {
        if (!progress) progress = std::make_unique<Progress>("preprocess", "bytes", total, mode);
        progress->update(done, concat(documents, " documents"));
      });
  if (progress) progress->finish();
  const double seconds = since_start.seconds();
  if (flags.json) {
    const nlohmann::ordered_json report{{"prefix", result.prefix},         {"documents", result.documents},
                                        {"sequences", result.sequences},   {"tokens", result.tokens},
                                        {"text_bytes", result.text_bytes}, {"seconds", seconds}};
    print_json(report);
  } else {
    std::printf("%s: %lld documents, %lld tokens from %s of text in %s (%s/s)\n", result.prefix.c_str(),
                static_cast<long long>(result.documents), static_cast<long long>(result.tokens),
                human_bytes(static_cast<double>(result.text_bytes)).c_str(), human_duration(seconds).c_str(),
                human_bytes(static_cast<double>(result.text_bytes) / seconds).c_str());
  }
  return kDone;
}

struct InfoFlags {
  bool json = false;
  void visit(auto& v) { v("json", json, "Print a JSON object."); }
};

int info(const Args& args) {
  InfoFlags flags;
  const auto words = config::parse_command_line(
      flags, args,
      "megatron data info P [--json]\n\nReads the whole index of P.bin and P.idx, checks it and sums it up.");
  if (words.size() != 1) throw ConfigError(rule_got_fix("data info takes one prefix.", concat(words.size(), " words")));
  const data::IndexedDataset pair(words[0]);
  const std::int64_t tokens = pair.verify();
  std::int64_t shortest = pair.size() == 0 ? 0 : INT64_MAX, longest = 0, empty_documents = 0;
  for (std::int64_t i = 0; i < pair.size(); ++i) {
    shortest = std::min(shortest, pair.length(i));
    longest = std::max(longest, pair.length(i));
  }
  for (std::int64_t i = 0; i < pair.num_documents(); ++i)
    empty_documents += pair.first_sequence(i) == pair.first_sequence(i + 1) ? 1 : 0;
  const double mean = pair.size() == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(pair.size());
  if (flags.json) {
    const nlohmann::ordered_json report{{"prefix", words[0]},
                                        {"dtype", data::dtype_name(pair.dtype())},
                                        {"documents", pair.num_documents()},
                                        {"empty_documents", empty_documents},
                                        {"sequences", pair.size()},
                                        {"tokens", tokens},
                                        {"bin_bytes", pair.bin_bytes()},
                                        {"shortest_sequence", shortest},
                                        {"longest_sequence", longest},
                                        {"mean_sequence", mean},
                                        {"modes", pair.has_modes()}};
    print_json(report);
    return kDone;
  }
  std::printf(
      "%s\n  dtype      %s\n  documents  %lld (%lld empty)\n  sequences  %lld of %lld to %lld tokens, %.1f on "
      "average%s\n"
      "  tokens     %lld (%s)\n",
      words[0].c_str(), data::dtype_name(pair.dtype()), static_cast<long long>(pair.num_documents()),
      static_cast<long long>(empty_documents), static_cast<long long>(pair.size()), static_cast<long long>(shortest),
      static_cast<long long>(longest), mean, pair.has_modes() ? ", with modes" : "", static_cast<long long>(tokens),
      human_bytes(static_cast<double>(pair.bin_bytes())).c_str());
  return kDone;
}

struct IndexFlags {
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  std::string split = "969,30,1";
  std::vector<std::int64_t> samples;
  std::string output;
  bool json = false;

  void visit(auto& v) {
    v("seq_length", seq_length, "Tokens of a sample.");
    v("seed", seed, "Seed of the order.");
    v("split", split, "Shares of documents for training, validation and test.");
    v("samples", samples, "Samples of training, validation and test, such as 1000,50,10.");
    v("output", output, "Folder to write.");
    v("json", json, "Print what was written as a JSON object.");
  }
};

int index(const Args& args) {
  IndexFlags flags;
  const auto words = config::parse_command_line(
      flags, args,
      "megatron data index P --seq-length S --seed N --split 969,30,1 --samples T,V,E --output DIR\n\n"
      "Builds the order of GPT samples ahead of time: DIR/SPLIT_{document,sample,shuffle}_index.npy.");
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("data index takes one prefix.", concat(words.size(), " words")));
  need(!flags.output.empty(), "--output");
  need(flags.seq_length != 0, "--seq-length");
  if (flags.samples.size() != 3)
    throw ConfigError(
        rule_got_fix("--samples takes three numbers, such as 1000,50,10.", concat(flags.samples.size(), " numbers")));
  const data::IndexedDataset pair(words[0]);
  const auto ranges = data::split_ranges(flags.split, pair.size());
  const auto spec_of = [&](std::size_t i) {
    return data::GptIndexSpec{.seq_length = flags.seq_length, .seed = flags.seed, .num_samples = flags.samples[i]};
  };
  constexpr std::array kParts = {data::SplitPart::Train, data::SplitPart::Valid, data::SplitPart::Test};
  for (std::size_t i = 0; i < 3; ++i) data::check_split(kParts[i], flags.split, ranges[i], spec_of(i), pair);
  make_folder(flags.output);
  nlohmann::ordered_json report = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < 3; ++i) {
    if (ranges[i].size() == 0) continue;
    const std::string name = data::split_part_name(kParts[i]), stem = flags.output + "/" + name;
    const auto plan =
        data::build_gpt_index(pair, ranges[i], spec_of(i),
                              {stem + "_document_index.npy", stem + "_sample_index.npy", stem + "_shuffle_index.npy"});
    report[name] = {{"sequences", ranges[i].size()},
                    {"tokens_per_epoch", plan.tokens_per_epoch},
                    {"epochs", plan.epochs},
                    {"separate_last_epoch", plan.separate_last_epoch},
                    {"samples", plan.samples}};
    if (!flags.json)
      std::printf("%s: %lld samples in %lld passes over %lld sequences\n", name.c_str(),
                  static_cast<long long>(plan.samples), static_cast<long long>(plan.epochs),
                  static_cast<long long>(ranges[i].size()));
  }
  if (flags.json) print_json(report);
  return kDone;
}

}  // namespace

int data(const Args& args) {
  return dispatch("megatron data",
                  {{"preprocess", "Text to tokens: PREFIX_KEY_document.bin and .idx.", preprocess},
                   {"index", "Builds the order of GPT samples ahead of time.", index},
                   {"info", "Checks a .bin/.idx pair and sums it up.", info}},
                  args);
}

}  // namespace megatron::app
