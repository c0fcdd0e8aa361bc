#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
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
#include "megatron/data/byte_stream.h"
#include "megatron/data/text_reader.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/train_bpe.h"

namespace megatron::app {
namespace {

constexpr const char* kTrainUsage =
    "megatron tokenizer train --input F… --vocab-size N --output DIR [OPTION]…\n\n"
    "Learns byte-level BPE and writes DIR/tokenizer.json, which Hugging Face tokenizers reads too.";
constexpr const char* kEncodeUsage =
    "megatron tokenizer encode --tokenizer T [--input F] [--output F] [--json]\n\n"
    "Text to ids: one line of ids for each line of text (the line's end is not encoded); with --json one object whose\n"
    "`ids` are those of the whole input. Special tokens written in the text are recognised.";
constexpr const char* kDecodeUsage =
    "megatron tokenizer decode --tokenizer T [--input F] [--output F]\n\n"
    "Ids to text: one line of text for each line of ids.";

struct TrainFlags {
  std::vector<std::string> input;
  std::int64_t vocab_size = 0;
  std::string output;
  std::int64_t min_frequency = 2;
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  int threads = 0;
  std::string json_key = "text";
  std::string format = "auto";
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v("input", input, "JSONL or plain text, also .gz and .zst; - reads standard input.");
    v("vocab_size", vocab_size, "Tokens to learn, the 256 bytes and special tokens included.");
    v("output", output, "Folder to write tokenizer.json into.");
    v("min_frequency", min_frequency, "Pairs of tokens that occur less often are not merged.");
    v("special_tokens", special_tokens, "Tokens that stand for something outside the text; they get the first ids.");
    v("threads", threads, "Threads that count; 0: one a core. The result does not depend on it.");
    v("json_key", json_key, "Key of a JSON line that holds its text.");
    v("format", format, "auto, jsonl, lines, paragraphs, file or pieces, as in `megatron data preprocess`.");
    v("progress", progress, "Progress with rate and ETA: auto, on, off.");
    v("json", json, "Print the result as a JSON object.");
  }
};

struct DecodeFlags {
  std::string tokenizer;
  std::string input = "-";
  std::string output;
  bool json = false;

  void visit(auto& v) {
    v("tokenizer", tokenizer, "Tokenizer folder or file (tokenizer.json; encoder.json + vocab.bpe; vocab.txt).");
    v("input", input, "File to read, also .gz and .zst; - reads standard input.");
    v("output", output, "File to write; empty: standard output.");
    v("json", json, "Write JSON: encode one object for the input, decode one a line.");
  }
};

struct EncodeFlags : DecodeFlags {
  bool add_special_tokens = false;

  void visit(auto& v) {
    DecodeFlags::visit(v);
    v("add_special_tokens", add_special_tokens,
      "Set what the tokenizer's template sets around each text: [CLS] … [SEP].");
  }
};

void need(bool given, const char* flag) {
  if (!given) throw ConfigError(rule_got_fix(concat(flag, " must be given."), "nothing"));
}

void reject_words(const std::vector<std::string>& words) {
  if (!words.empty()) throw ConfigError(rule_got_fix("this job takes options alone.", words[0]));
}

/// Counts the pieces of all documents, showing progress. The folder is made when the inputs have been found.
text::PieceCounter count(const TrainFlags& flags) {
  const auto mode = Progress::mode_of(flags.progress);
  data::TextReaderOptions options;
  options.inputs = flags.input;
  options.format = data::text_format_of(flags.format);
  options.json_key = flags.json_key;
  options.max_document_bytes = std::size_t{2048} << 20;
  data::TextReader reader(std::move(options));
  make_folder(flags.output);
  Progress progress("count", "bytes", reader.total_bytes().value_or(0), mode);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return text::count_pieces(
      [&](std::string& document) {
        const bool more = reader.next(document);
        progress.update(reader.position());
        return more;
      },
      flags.threads == 0 ? cores : flags.threads);
}

int train_vocabulary(const Args& args) {
  TrainFlags flags;
  reject_words(config::parse_command_line(flags, args, kTrainUsage));
  need(!flags.input.empty(), "--input");
  need(flags.vocab_size != 0, "--vocab-size");
  need(!flags.output.empty(), "--output");
  if (flags.threads < 0 || flags.threads > 1024)
    throw ConfigError(rule_got_fix("--threads must be 0 to 1024.", concat(flags.threads)));
  if (flags.min_frequency < 1)
    throw ConfigError(rule_got_fix("--min-frequency must be 1 or more.", concat(flags.min_frequency)));
  const text::TrainOptions options{
      .vocab_size = flags.vocab_size, .min_frequency = flags.min_frequency, .specials = flags.special_tokens};
  options.check(text::kByteAlphabet);
  const auto mode = Progress::mode_of(flags.progress);

  const Stopwatch since_start;
  const text::PieceCounter pieces = count(flags);
  if (pieces.distinct() == 0) throw ConfigError(rule_got_fix("the input must hold text.", "no character"));
  Progress progress("merge", "tokens", flags.vocab_size, mode);
  const text::Tokenizer tokenizer(
      text::train_bpe(pieces, options, [&](std::int64_t tokens) { progress.update(tokens); }));
  progress.finish();
  tokenizer.save(flags.output);
  const double seconds = since_start.seconds();
  const std::string file = (std::filesystem::path(flags.output) / "tokenizer.json").string();
  if (flags.json) {
    const nlohmann::ordered_json report{{"tokenizer", file},
                                        {"vocab_size", tokenizer.vocab_size()},
                                        {"merges", tokenizer.vocabulary().merges.size()},
                                        {"distinct_pieces", pieces.distinct()},
                                        {"seconds", seconds}};
    print_json(report);
  } else {
    std::printf("%s: %d tokens from %zu different pieces of text in %s\n", file.c_str(), tokenizer.vocab_size(),
                pieces.distinct(), human_duration(seconds).c_str());
    if (tokenizer.vocab_size() < flags.vocab_size)
      std::printf("  fewer than the %lld asked for: no other pair of tokens occurs %lld times\n",
                  static_cast<long long>(flags.vocab_size), static_cast<long long>(flags.min_frequency));
  }
  return kDone;
}

/// Reads lines of any length from a stream.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : stream_(path), buffer_(1 << 20, '\0') {}

  /// The next line without its end; false after the last.
  bool next(std::string& line) {
    line.clear();
    while (true) {
      const std::size_t end = std::min(buffer_.find('\n', at_), filled_);
      line.append(buffer_, at_, end - at_);
      if (end < filled_) {
        at_ = end + 1;
        return true;
      }
      at_ = 0;
      filled_ = stream_.read(buffer_);
      if (filled_ == 0) return !line.empty();
    }
  }

  /// All that is left.
  std::string rest() {
    std::string all(buffer_, at_, filled_ - at_);
    while ((filled_ = stream_.read(buffer_)) != 0) all.append(buffer_, 0, filled_);
    at_ = 0;
    return all;
  }

 private:
  data::ByteStream stream_;
  std::string buffer_;
  std::size_t at_ = 0, filled_ = 0;
};

/// Standard output, or a file that appears when it is complete.
class Output {
 public:
  explicit Output(const std::string& path) {
    if (!path.empty()) file_ = std::make_unique<AtomicFile>(path);
  }
  void write(std::string_view text) {
    if (file_)
      file_->write(text);
    else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
      throw std::runtime_error("standard output could not be written");
  }
  void finish() {
    if (file_) file_->commit();
  }

 private:
  std::unique_ptr<AtomicFile> file_;
};

int encode(const Args& args) {
  EncodeFlags flags;
  reject_words(config::parse_command_line(flags, args, kEncodeUsage));
  need(!flags.tokenizer.empty(), "--tokenizer");
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.tokenizer);
  text::Encoder encoder = tokenizer.encoder();
  LineReader reader(flags.input);
  Output output(flags.output);
  std::vector<std::int32_t> ids;
  const auto encode_text = [&](const std::string& text) {
    ids.clear();
    encoder.encode_append(text, ids, text::Specials::Recognised);
    if (flags.add_special_tokens) ids = tokenizer.frame(ids).ids;
  };
  if (flags.json) {
    encode_text(reader.rest());
    output.write(json_line(nlohmann::json{{"ids", ids}}));
  } else {
    std::string line, out;
    while (reader.next(line)) {
      encode_text(line);
      out.clear();
      for (const std::int32_t id : ids) (out += std::to_string(id)) += ' ';
      if (!out.empty()) out.pop_back();
      output.write(out += '\n');
    }
  }
  output.finish();
  return kDone;
}

/// The ids of a line: numbers with blanks, commas or brackets between them.
void parse_ids(const std::string& line, const std::string& where, std::vector<std::int32_t>& ids) {
  const char *p = line.data(), *const end = p + line.size();
  while (true) {
    p = std::find_if_not(p, end,
                         [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']'; });
    if (p == end) return;
    std::int32_t id = 0;
    const auto [after, error] = std::from_chars(p, end, id);
    if (error != std::errc{})
      throw ConfigError(rule_got_fix(where + ": must be token ids with blanks between them",
                                     concat("at byte ", p - line.data(),
                                            " of the line: ", std::string(p, std::min<std::ptrdiff_t>(end - p, 20)))));
    ids.push_back(id);
    p = after;
  }
}

int decode(const Args& args) {
  DecodeFlags flags;
  reject_words(config::parse_command_line(flags, args, kDecodeUsage));
  need(!flags.tokenizer.empty(), "--tokenizer");
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.tokenizer);
  LineReader reader(flags.input);
  Output output(flags.output);
  std::string line;
  std::vector<std::int32_t> ids;
  for (std::int64_t number = 1; reader.next(line); ++number) {
    ids.clear();
    parse_ids(line, concat(flags.input == "-" ? "standard input" : flags.input, " line ", number), ids);
    if (flags.json)
      output.write(json_line(nlohmann::json{{"text", tokenizer.decode(ids)}}));
    else
      output.write(tokenizer.decode(ids) + "\n");
  }
  output.finish();
  return kDone;
}

}  // namespace

int tokenizer(const Args& args) {
  return dispatch("megatron tokenizer",
                  {{"train", "Learns a vocabulary from text.", train_vocabulary},
                   {"encode", "Text to ids.", encode},
                   {"decode", "Ids to text.", decode}},
                  args);
}

}  // namespace megatron::app
