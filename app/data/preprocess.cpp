#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/data/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "app/special_tokens.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/data/files/dataset_folder.h"
#include "megatron/data/preprocess/preprocess.h"
#include "megatron/text/open_tokenizer.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr const char* kPreprocessUsage =
    "megatron data preprocess --input F… --tokenizer T --output-prefix P [OPTION]…\n\n"
    "Text to tokens: P_KEY_document.bin and .idx, as Megatron-LM's preprocessing writes them.";

struct PreprocessFlags {
  std::vector<std::string> input;
  std::string tokenizer, tokenizer_type;
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  std::string format = "auto";
  std::int64_t piece_bytes = 4096;
  bool append_eod = false;
  std::string special_tokens = "text";
  bool add_special_tokens = false;
  bool split_sentences = false;
  bool keep_newlines = false;
  std::string lang = "en";
  std::string on_error = "stop";
  int workers = 0;
  std::int64_t max_document_mb = 64;
  std::int64_t note_mb = 64;
  bool restart = false;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v.title("what is read");
    v("input", input,
      "JSONL or plain text, also .gz, .zst and .xz; parquet, Arrow, folders of datasets; - reads standard input.",
      config::Required(), config::Common());
    v("json_keys", json_keys, "Keys of a JSON line whose texts are read; each makes a pair of files.", "json-key",
      config::Common());
    v("format", format,
      "Input format: lines is one document per line, paragraphs separates by empty lines, file is one document per "
      "file, pieces cuts each file; auto: JSONL by name or content, else file.",
      config::Common(), config::Choices({"auto", "jsonl", "lines", "paragraphs", "file", "pieces"}));
    v("piece_bytes", piece_bytes, "With --format pieces: maximum document size in bytes.");
    v("max_document_mb", max_document_mb, "Maximum document size in 2^20 bytes; a larger one is a bad line.");
    v("on_error", on_error, "What a bad line does; skip counts it and continues.", config::Choices({"stop", "skip"}));
    v.title("what becomes of it");
    v("tokenizer", tokenizer, kTokenizerHelp, "tokenizer-model", config::Required(), config::Common());
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("append_eod", append_eod, "End every document with the end-of-text token.", config::Common());
    v("special_tokens", special_tokens, kSpecialTokensHelp);
    v("add_special_tokens", add_special_tokens, kAddSpecialTokensHelp);
    v("split_sentences", split_sentences, "Make each sentence a sequence: P_KEY_sentence.", config::Common());
    v("keep_newlines", keep_newlines, "With --split-sentences: keep the white space between sentences.");
    v("lang", lang, "Language whose abbreviations --split-sentences knows: en, de, fr or es.");
    v.title("how it is done");
    v("workers", workers, "Threads that tokenize; 0: one per core.", config::Common());
    v("note_mb", note_mb, "Text between points from which an interrupted run can resume, in 2^20 bytes.");
    v("restart", restart, "Start over where an interrupted run could resume.");
    v.title("what is written");
    v("output_prefix", output_prefix, "Prefix of the files to write.", config::Required(), config::Common());
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print the result as one JSON object.", config::Common());
  }
};

data::PreprocessOptions preprocess_options(const PreprocessFlags& flags, const text::Tokenizer& tokenizer) {
  if (flags.max_document_mb < 1 || flags.max_document_mb > 2000)  // its tokens are counted in 32 bits
    throw ConfigError(
        rule_got_fix("--max-document-mb must be 1 to 2000.", concat(flags.max_document_mb), "--max-document-mb 64"));
  if (flags.note_mb < 1 || flags.note_mb > 1 << 20)
    throw ConfigError(rule_got_fix("--note-mb must be 1 to 1048576.", concat(flags.note_mb),
                                   concat("--note-mb ", PreprocessFlags().note_mb, " (the default)")));
  if (flags.piece_bytes < 4 || flags.piece_bytes > flags.max_document_mb << 20)
    throw ConfigError(rule_got_fix("--piece-bytes must be 4 to the bytes of --max-document-mb.",
                                   concat(flags.piece_bytes),
                                   concat("--piece-bytes ", PreprocessFlags().piece_bytes, " (the default)")));
  const PreprocessFlags unset;
  if (flags.piece_bytes != unset.piece_bytes && flags.format != "pieces")
    throw ConfigError(rule_got_fix("--piece-bytes needs --format pieces.", "--format " + flags.format,
                                   "--format pieces, or leave --piece-bytes out"));
  for (const auto& [flag, given] :
       {std::pair("--keep-newlines", flags.keep_newlines), {"--lang", flags.lang != unset.lang}})
    if (given && !flags.split_sentences)
      throw ConfigError(rule_got_fix(concat(flag, " needs --split-sentences."), concat(flag, " alone"),
                                     concat("--split-sentences, or leave ", flag, " out")));
  data::PreprocessOptions options;
  options.text.inputs = data::with_dataset_files(flags.input);
  options.text.format = data::text_format_of(flags.format);
  options.text.piece_bytes = static_cast<std::size_t>(flags.piece_bytes);
  options.text.max_document_bytes = static_cast<std::size_t>(flags.max_document_mb) << 20;
  options.text.limit_option = "--max-document-mb";
  options.json_keys = flags.json_keys;
  options.output_prefix = flags.output_prefix;
  options.split_sentences = flags.split_sentences;
  options.keep_newlines = flags.keep_newlines;
  options.language = flags.lang;
  options.on_error = data::on_error_of(flags.on_error);
  options.note_bytes = flags.note_mb << 20;
  options.restart = flags.restart;
  options.append_eod = flags.append_eod;
  if (flags.append_eod) options.eod = tokenizer.eod_id();
  options.workers = threads_of(flags.workers, "--workers");
  return options;
}

/// What is wrong with the first bad lines goes to stderr, a line each.
std::function<void(const std::string&)> bad_line_log() {
  return [shown = 0](const std::string& reason) mutable {
    constexpr int kShown = 20;
    if (++shown <= kShown) write_line(stderr, reason);
    if (shown == kShown) write_line(stderr, "further bad lines are only counted");
  };
}

void print_report(const data::PreprocessResult& result, double seconds) {
  for (const auto& pair : result.pairs)
    print("{}: {} documents, {} tokens\n", pair.prefix, pair.documents, pair.tokens);
  const auto done = static_cast<double>(result.text_bytes - result.kept_bytes);
  print("{} of text in {} ({}/s)", human_bytes(done), human_duration(seconds), human_bytes(done / seconds));
  if (result.kept_bytes > 0) print(", {} before", human_bytes(static_cast<double>(result.kept_bytes)));
  if (result.bad_lines > 0) print("; {} bad lines skipped", result.bad_lines);
  if (result.blank_lines > 0) print("; {} blank lines skipped", result.blank_lines);
  if (result.empty_documents > 0) print("; {} documents without a token", result.empty_documents);
  if (result.not_utf8 > 0) print("; {} documents with bytes that are not UTF-8", result.not_utf8);
  if (result.replaced_bytes > 0) print("; {} bytes that are not UTF-8 read as U+FFFD", result.replaced_bytes);
  print_text("\n");
}

nlohmann::ordered_json json_report(const data::PreprocessResult& result, double seconds) {
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (const auto& pair : result.pairs)
    pairs.push_back({{"key", pair.key},
                     {"prefix", pair.prefix},
                     {"documents", pair.documents},
                     {"sequences", pair.sequences},
                     {"tokens", pair.tokens}});
  return {{"pairs", std::move(pairs)},
          {"text_bytes", result.text_bytes},
          {"kept_bytes", result.kept_bytes},
          {"bad_lines", result.bad_lines},
          {"blank_lines", result.blank_lines},
          {"empty_documents", result.empty_documents},
          {"not_utf8", result.not_utf8},
          {"replaced_bytes", result.replaced_bytes},
          {"peak_text_bytes", result.peak_bytes},
          {"seconds", seconds}};
}

}  // namespace

int data_preprocess(const Args& args) {
  PreprocessFlags flags;
  no_words(config::parse_command_line(flags, args, kPreprocessUsage));
  need_option(!flags.input.empty(), "--input");
  need_option(!flags.tokenizer.empty(), "--tokenizer", "FOLDER");
  need_option(!flags.output_prefix.empty(), "--output-prefix", "PREFIX");
  const auto mode = Progress::mode_of(flags.progress);
  const text::Specials specials = specials_of(flags.special_tokens);
  const text::Tokenizer tokenizer = text::open_tokenizer(flags.tokenizer, flags.tokenizer_type);
  data::PreprocessOptions options = preprocess_options(flags, tokenizer);
  options.on_bad_line = bad_line_log();
  const data::TextEncoder encoder =
      data::encoder_of(tokenizer, flags.add_special_tokens ? data::Around::Template : data::Around::Nothing, specials);

  const Stopwatch since_start;
  std::unique_ptr<Progress> progress;
  const auto result =
      data::preprocess(options, encoder, [&](std::int64_t done, std::int64_t total, std::int64_t documents) {
        if (!progress) {
          progress = std::make_unique<Progress>("preprocess", "bytes", total, mode);
          progress->start_at(done);
        }
        progress->update(done, concat(documents, " documents"));
      });
  if (progress) progress->finish();
  if (flags.json)
    print_json(json_report(result, since_start.seconds()));
  else
    print_report(result, since_start.seconds());
  return kDone;
}

}  // namespace megatron::app
