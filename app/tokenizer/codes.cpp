#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/json_line.h"
#include "app/special_tokens.h"
#include "app/tokenizer/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/outputs.h"
#include "megatron/base/machine/huge_heap.h"
#include "megatron/config/options.h"
#include "megatron/data/files/byte_stream.h"
#include "megatron/text/open_tokenizer.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr const char* kEncodeUsage =
    "megatron tokenizer encode --tokenizer T [--input F…] [--output F] [--json]\n\n"
    "Text to ids: one line of ids for each line of text (the line's end is not encoded); with --json one object for "
    "each\n"
    "input, whose `ids` are those of the whole input.";
constexpr const char* kDecodeUsage =
    "megatron tokenizer decode --tokenizer T [--input F…] [--output F] [--json]\n\n"
    "Ids to text: one line of text for each line of ids; with --json one object for each, whose `text` it is.";

struct DecodeFlags {
  std::string tokenizer, tokenizer_type;
  std::vector<std::string> input = {"-"};
  std::string output;
  bool json = false;

  void visit(auto& v) {
    v.title("what is read");
    v("tokenizer", tokenizer, kTokenizerHelp, config::Required());
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("input", input, "Files to read, also .gz, .zst and .xz; - reads standard input.");
    v.title("what is written");
    v("output", output, "File to write; - or empty: standard output.");
    v("json", json, "Print JSON: encode one object per input, decode one per line.");
  }
};

struct EncodeFlags : DecodeFlags {
  bool add_special_tokens = false;
  std::string special_tokens = "recognised";
  int threads = 1;

  void visit(auto& v) {
    DecodeFlags::visit(v);
    v.title("how text becomes ids");
    v("special_tokens", special_tokens, kSpecialTokensHelp);
    v("add_special_tokens", add_special_tokens, kAddSpecialTokensHelp);
    v("threads", threads, "Threads that encode lines; 0: one per core.");
  }
};

/// Reads lines of any length from a stream, those of a pipe or a terminal as they come.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : stream_(path), buffer_(1 << 20, '\0') {}

  /// Whether the next line is in memory.
  bool has_line() const { return buffer_.find('\n', at_) < filled_; }

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
      filled_ = stream_.read_some(buffer_);
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
    if (!path.empty() && path != "-") file_ = std::make_unique<AtomicFile>(path);
  }
  void write(std::string_view text) {
    if (file_)
      file_->write(text);
    else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
      throw std::runtime_error("standard output could not be written");
  }
  /// What is written is to be seen now: who writes lines to a pipe may wait for what they become.
  void flush() {
    if (!file_ && std::fflush(stdout) != 0) throw std::runtime_error("standard output could not be written");
  }
  void finish() {
    if (file_) file_->commit();
  }

 private:
  std::unique_ptr<AtomicFile> file_;
};

/// Encodes the lines of one input, those that are in memory at a time.
class LineEncoder {
 public:
  LineEncoder(const text::Tokenizer& tokenizer, const EncodeFlags& flags)
      : tokenizer_(tokenizer),
        flags_(flags),
        threads_(threads_of(flags.threads)),
        specials_(specials_of(flags.special_tokens)) {}

  void encode(LineReader& reader, Output& output) {
    while (read_lines(reader)) {
      std::string out;
      for (const std::vector<std::int32_t>& ids : encode_lines()) {
        for (const std::int32_t id : ids) (out += std::to_string(id)) += ' ';
        if (!ids.empty()) out.pop_back();
        out += '\n';
      }
      output.write(out);
      output.flush();
    }
  }

 private:
  bool read_lines(LineReader& reader) {
    std::size_t count = 0;
    do {
      if (count == lines_.size()) lines_.emplace_back();
      if (!reader.next(lines_[count])) break;
      ++count;
    } while (reader.has_line());
    views_.assign(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(count));
    return count > 0;
  }

  std::vector<std::vector<std::int32_t>> encode_lines() const {
    auto ids = tokenizer_.encode_batch(views_, threads_, specials_);
    if (flags_.add_special_tokens)
      for (auto& line : ids) line = tokenizer_.frame(line).ids;
    return ids;
  }

  const text::Tokenizer& tokenizer_;
  const EncodeFlags& flags_;
  int threads_;
  text::Specials specials_;
  std::vector<std::string> lines_;  // keep their memory
  std::vector<std::string_view> views_;
};

/// The ids of a line: numbers with spaces, commas or brackets between them.
void parse_ids(const std::string& line, const std::string& where, std::vector<std::int32_t>& ids) {
  const char *p = line.data(), *const end = p + line.size();
  while (true) {
    p = std::find_if_not(p, end,
                         [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']'; });
    if (p == end) return;
    std::int32_t id = 0;
    const auto [after, error] = std::from_chars(p, end, id);
    if (error != std::errc{})
      throw ConfigError(rule_got_fix(
          where + ": must be token ids separated by spaces",
          concat("at byte ", p - line.data(), " of the line: ", std::string(p, std::min<std::ptrdiff_t>(end - p, 20))),
          "lines as megatron tokenizer encode prints them"));
    ids.push_back(id);
    p = after;
  }
}

/// The inputs are there, and the output is none of them: it would be replaced by what it becomes.
void check_files(const DecodeFlags& flags) {
  data::check_readable(flags.input);
  check_outputs({flags.output == "-" ? "" : flags.output}, flags.input);
}

/// A vocabulary's tables are most of a short job's memory; a large one's are some 30 MB.
constexpr std::size_t kTables = std::size_t{64} << 20;

}  // namespace

int tokenizer_encode(const Args& args) {
  EncodeFlags flags;
  no_words(config::parse_command_line(flags, args, kEncodeUsage));
  need_option(!flags.tokenizer.empty(), "--tokenizer", "FOLDER");
  threads_of(flags.threads);
  check_files(flags);
  const text::Specials specials = specials_of(flags.special_tokens);
  use_huge_pages_for_heap(kTables);
  const text::Tokenizer tokenizer = text::open_tokenizer(flags.tokenizer, flags.tokenizer_type);
  Output output(flags.output);
  LineEncoder lines(tokenizer, flags);
  for (const std::string& input : flags.input) {
    LineReader reader(input);
    if (!flags.json) {
      lines.encode(reader, output);
      continue;
    }
    std::vector<std::int32_t> ids;
    tokenizer.encoder().encode_append(reader.rest(), ids, specials);
    if (flags.add_special_tokens) ids = tokenizer.frame(ids).ids;
    output.write(json_line(nlohmann::ordered_json{{"input", input}, {"ids", ids}}));
  }
  output.finish();
  return kDone;
}

int tokenizer_decode(const Args& args) {
  DecodeFlags flags;
  no_words(config::parse_command_line(flags, args, kDecodeUsage));
  need_option(!flags.tokenizer.empty(), "--tokenizer", "FOLDER");
  check_files(flags);
  use_huge_pages_for_heap(kTables);
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.tokenizer, flags.tokenizer_type);
  Output output(flags.output);
  std::string line;
  std::vector<std::int32_t> ids;
  for (const std::string& input : flags.input) {
    LineReader reader(input);
    for (std::int64_t number = 1; reader.next(line); ++number) {
      ids.clear();
      parse_ids(line, concat(input == "-" ? "standard input" : input, " line ", number), ids);
      if (flags.json)
        output.write(json_line(nlohmann::json{{"text", tokenizer.decode(ids)}}));
      else
        output.write(tokenizer.decode(ids) + "\n");
      if (!reader.has_line()) output.flush();
    }
  }
  output.finish();
  return kDone;
}

}  // namespace megatron::app
