#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/data_jobs.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
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

}  // namespace

int data_preprocess(const Args& args) {
  PreprocessFlags flags;
  no_words(config::parse_command_line(flags, args, kPreprocessUsage));
  need_option(!flags.input.empty(), "--input");
  need_option(!flags.tokenizer.empty(), "--tokenizer");
  need_option(!flags.output_prefix.empty(), "--output-prefix");
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

}  // namespace megatron::app
