#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/json_line.h"
#include "app/made_folder.h"
#include "app/print.h"
#include "app/tokenizer/jobs.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/data/files/dataset_folder.h"
#include "megatron/data/files/text_reader.h"
#include "megatron/text/learn/train_bpe.h"
#include "megatron/text/learn/train_unigram.h"
#include "megatron/text/learn/train_word_piece.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron tokenizer train --input F… --vocab-size N --output DIR [OPTION]…\n\n"
    "Learns a vocabulary from text. Byte-level BPE (as GPT-2's) and WordPiece (as BERT's) write DIR/tokenizer.json, "
    "which\n"
    "Hugging Face tokenizers reads too; Unigram writes DIR/tokenizer.model, which SentencePiece reads too.";

struct Flags {
  std::string kind = "bpe";
  std::vector<std::string> input;
  std::int64_t vocab_size = 0;
  std::string output;
  std::int64_t min_frequency = 0;
  std::vector<std::string> special_tokens;
  std::int64_t limit_alphabet = 0;
  bool cased = false;
  int threads = 0;
  std::string json_key = "text";
  std::string format = "auto";
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v.title("what is read");
    v("input", input, "JSONL or plain text, also .gz, .zst and .xz; - reads standard input.", config::Required());
    v("json_key", json_key, "Key of a JSON line that holds its text.");
    v("format", format, "Input format, as in `megatron data preprocess`.",
      config::Choices({"auto", "jsonl", "lines", "paragraphs", "file", "pieces"}));
    v.title("what is learned");
    v("kind", kind, "Algorithm: byte-level BPE, WordPiece, or SentencePiece's unigram.",
      config::Choices({"bpe", "wordpiece", "unigram"}));
    v("vocab_size", vocab_size, "Tokens to learn, the alphabet and special tokens included.", config::Example{"32000"},
      config::Required());
    v("min_frequency", min_frequency, "bpe, wordpiece: minimum count of a pair of tokens to be merged; 0: 2.");
    v("special_tokens", special_tokens,
      "Tokens that stand for something outside the text; they get the first ids. None: <|endoftext|>, and for "
      "wordpiece "
      "[PAD] [UNK] [CLS] [SEP] [MASK].");
    v("limit_alphabet", limit_alphabet, "wordpiece: number of characters to keep, the most frequent; 0: 1000.");
    v("cased", cased, "wordpiece: keep capitals and accents.");
    v.title("how it is done");
    v("threads", threads, "Threads that count; 0: one per core. The result does not depend on it.");
    v.title("what is written");
    v("output", output, "Folder to write the tokenizer into.", config::Required());
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print the result as one JSON object.");
  }

  text::TrainOptions merges() const {
    text::TrainOptions options{.vocab_size = vocab_size};
    if (min_frequency != 0) options.min_frequency = min_frequency;
    if (kind == "wordpiece") options.specials = text::TrainWordPieceOptions().merges.specials;
    if (!special_tokens.empty()) options.specials = special_tokens;
    return options;
  }
  text::TrainWordPieceOptions word_piece() const {
    text::TrainWordPieceOptions options;
    options.merges = merges();
    if (limit_alphabet != 0) options.limit_alphabet = limit_alphabet;
    options.normalization.lower_case = options.normalization.strip_accents = !cased;
    return options;
  }
};

/// What there is to say about the words that were not given and those that do not go together, before any work.
void check(const Flags& flags) {
  need_option(!flags.input.empty(), "--input");
  need_option(flags.vocab_size != 0, "--vocab-size", "32000");
  need_option(!flags.output.empty(), "--output", "FOLDER");
  threads_of(flags.threads);
  if (flags.kind != "bpe" && flags.kind != "wordpiece" && flags.kind != "unigram")
    throw ConfigError(
        rule_got_fix("--kind must be bpe, wordpiece or unigram.", flags.kind, "--kind bpe (the default)"));
  if (flags.kind != "wordpiece" && (flags.cased || flags.limit_alphabet != 0))
    throw ConfigError(rule_got_fix("--cased and --limit-alphabet are for wordpiece.", "--kind " + flags.kind,
                                   "--kind wordpiece, or leave them out"));
  if (flags.kind == "unigram" && flags.min_frequency != 0)
    throw ConfigError(
        rule_got_fix("--min-frequency is for kinds that merge.", "--kind unigram", "leave --min-frequency out"));
  if (flags.kind == "bpe") flags.merges().check(text::kByteAlphabet);
  if (flags.kind == "wordpiece") flags.word_piece().check();
  if (flags.kind == "unigram") flags.merges().check(text::kUnigramAlphabet);
}

/// The documents of the inputs, with progress. The folder is made when the inputs have been found, and is gone again
/// where nothing is learned from them.
class Documents {
 public:
  Documents(const Flags& flags, const char* what)
      : reader_(options(flags)),
        progress_(what, "bytes", reader_.total_bytes().value_or(0), Progress::mode_of(flags.progress)),
        folder_(flags.output) {}

  bool next(std::string& document) {
    const bool more = reader_.next(document);
    progress_.update(reader_.position());
    return more;
  }

 private:
  static data::TextReaderOptions options(const Flags& flags) {
    data::TextReaderOptions options;
    options.inputs = data::with_dataset_files(flags.input);
    options.format = data::text_format_of(flags.format);
    options.json_key = flags.json_key;
    options.key_option = "--json-key";
    options.max_document_bytes = std::size_t{2048} << 20;
    return options;
  }
  data::TextReader reader_;
  Progress progress_;
  MadeFolder folder_;
};

/// What was learned, for the report.
struct Learned {
  std::string file;
  std::int64_t tokens = 0;
  nlohmann::ordered_json details;
};

Learned train_merges(const Flags& flags) {
  const bool is_bpe = flags.kind == "bpe";
  Documents documents(flags, "count");
  const text::PieceCounter pieces = text::count_pieces(
      [&](std::string& document) { return documents.next(document); }, threads_of(flags.threads),
      is_bpe ? text::CountPieces(text::count_gpt2_pieces) : text::count_bert_words(flags.word_piece().normalization));
  if (pieces.distinct() == 0)
    throw ConfigError(rule_got_fix("the input must hold text.", "no character",
                                   "--input a file with text; of JSON lines, the key that holds it: --json-key"));
  Progress progress("merge", "tokens", flags.vocab_size, Progress::mode_of(flags.progress));
  const auto update = [&](std::int64_t tokens) { progress.update(tokens); };
  const text::Tokenizer tokenizer(is_bpe ? text::train_bpe(pieces, flags.merges(), update)
                                         : text::train_word_piece(pieces, flags.word_piece(), update));
  progress.finish();
  tokenizer.save(flags.output);
  Learned learned{(std::filesystem::path(flags.output) / "tokenizer.json").string(), tokenizer.vocab_size(), {}};
  if (is_bpe) learned.details["merges"] = tokenizer.vocabulary().merges.size();
  learned.details["distinct_pieces"] = pieces.distinct();
  return learned;
}

Learned train_unigram(const Flags& flags) {
  Documents documents(flags, "read");
  const std::string model =
      text::train_unigram([&](std::string& document) { return documents.next(document); }, flags.merges());
  const std::filesystem::path file = std::filesystem::path(flags.output) / "tokenizer.model";
  write_file(file, model);
  return {file.string(), text::Tokenizer::load(file).vocab_size(), nlohmann::ordered_json::object()};
}

}  // namespace

int tokenizer_train(const Args& args) {
  Flags flags;
  no_words(config::parse_command_line(flags, args, kUsage));
  check(flags);
  const Stopwatch since_start;
  const Learned learned = flags.kind == "unigram" ? train_unigram(flags) : train_merges(flags);
  const double seconds = since_start.seconds();
  if (flags.json) {
    nlohmann::ordered_json report{{"tokenizer", learned.file}, {"kind", flags.kind}, {"vocab_size", learned.tokens}};
    report.update(learned.details);
    report["seconds"] = seconds;
    print_json(report);
    return kDone;
  }
  print("{}: {} tokens in {}\n", learned.file, learned.tokens, human_duration(seconds));
  if (learned.tokens < flags.vocab_size)
    print("  fewer than the {} asked for: no other pair of tokens occurs {} times\n", flags.vocab_size,
          flags.merges().min_frequency);
  return kDone;
}

}  // namespace megatron::app
