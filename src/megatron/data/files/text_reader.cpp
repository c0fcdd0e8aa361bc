#include "megatron/data/files/text_reader.h"

#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/data/files/json_line.h"

namespace megatron::data {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

/// The part of a message that shows the text in question, safe for a terminal.
std::string excerpt(std::string_view text) { return printable(text.substr(0, 60)) + (text.size() > 60 ? "…" : ""); }

TextFormat format_of_name(std::string_view name) {
  for (const std::string_view packed : {".gz", ".zst", ".xz"})
    if (name.ends_with(packed)) name.remove_suffix(packed.size());
  for (const std::string_view json : {".jsonl", ".ndjson", ".json"})
    if (name.ends_with(json)) return TextFormat::Jsonl;
  return name.ends_with(".txt") ? TextFormat::File : TextFormat::Auto;
}

/// Where a piece that begins `text` ends, which continues beyond `limit` bytes.
std::size_t end_of_piece(std::string_view text, std::size_t limit) {
  for (const char end : {'\n', ' '})
    if (const std::size_t last = text.rfind(end, limit - 1); last != std::string_view::npos) return last + 1;
  std::size_t cut = limit;
  const auto continues = [&] { return (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; };
  while (cut > limit - 4 && continues()) --cut;
  return continues() ? limit : cut;  // what is no UTF-8 is cut anywhere
}

}  // namespace

TextFormat text_format_of(std::string_view name, const char* option) {
  if (name == "auto") return TextFormat::Auto;
  if (name == "jsonl") return TextFormat::Jsonl;
  if (name == "lines") return TextFormat::Lines;
  if (name == "paragraphs") return TextFormat::Paragraphs;
  if (name == "file") return TextFormat::File;
  if (name == "pieces") return TextFormat::Pieces;
  throw ConfigError(rule_got_fix("a text format is auto, jsonl, lines, paragraphs, file or pieces.", std::string(name),
                                 concat(option, " auto (the default)")));
}

BlockReader::BlockReader(TextReaderOptions options) : options_(std::move(options)) {
  if (options_.inputs.empty()) throw ConfigError(rule_got_fix("there must be an input file.", "none", "--input FILE"));
  const bool fits = options_.piece_bytes >= 4 && options_.piece_bytes <= options_.max_document_bytes;
  if (options_.format == TextFormat::Pieces && !fits)
    throw ConfigError(rule_got_fix(concat("a piece must have 4 to ", options_.max_document_bytes, " bytes."),
                                   concat(options_.piece_bytes), "--piece-bytes between these"));
  check_readable(options_.inputs);
  for (const std::string& path : options_.inputs) {
    struct stat info {};
    if (path == "-" || ::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) total_bytes_.reset();
    if (total_bytes_) *total_bytes_ += info.st_size;
  }
}

BlockReader::BlockReader(TextReaderOptions options, std::span<const std::byte> memory, const std::string& name)
    : options_(std::move(options)), total_bytes_(static_cast<std::int64_t>(memory.size())) {
  options_.inputs.clear();
  next_input_ = 1;
  stream_.emplace(memory, name);
  begin_stream(name);
}

bool BlockReader::open_next() {
  if (next_input_ >= options_.inputs.size()) return false;
  const std::string& path = options_.inputs[next_input_++];
  stream_.emplace(path);
  begin_stream(path == "-" ? "standard input" : path);
  return true;
}

void BlockReader::begin_stream(const std::string& name) {
  file_ = name;
  carry_.resize(4096);
  carry_.resize(stream_->read(carry_));
  block_offset_ = 0;
  scanned_ = searched_ = record_begin_ = 0;
  line_ = record_line_ = 1;
  dropping_ = false;
  format_ = options_.format == TextFormat::Auto ? format_of_name(name) : options_.format;
  if (stream_->is_rows()) {
    if (options_.format != TextFormat::Auto && options_.format != TextFormat::Jsonl)
      throw ConfigError(rule_got_fix("rows of parquet and Arrow files are read as lines of JSON.", name,
                                     "--format auto (the default)"));
    format_ = TextFormat::Jsonl;
  }
  const bool byte_order_mark = carry_.starts_with("\xEF\xBB\xBF");
  if (format_ == TextFormat::Auto) {
    const auto first = carry_.find_first_not_of(" \t\r\n", byte_order_mark ? 3 : 0);
    format_ = first != std::string::npos && carry_[first] == '{' ? TextFormat::Jsonl : TextFormat::File;
  }
  if (format_ == TextFormat::Jsonl && byte_order_mark) scanned_ = record_begin_ = 3;
}

void BlockReader::start_at(const TextPosition& position) {
  for (next_input_ = 0; next_input_ < std::min(position.input, options_.inputs.size()); ++next_input_)
    closed_bytes_ += static_cast<std::int64_t>(std::filesystem::file_size(options_.inputs[next_input_]));
  if (position.offset == 0 || !open_next()) return;
  const auto offset = static_cast<std::size_t>(position.offset);
  if (offset > carry_.size()) stream_->skip(position.offset - static_cast<std::int64_t>(carry_.size()));
  carry_.erase(0, offset);
  block_offset_ = position.offset;
  scanned_ = record_begin_ = 0;
  line_ = record_line_ = position.line;
}

/// Closes the record [record_begin_, end). Whether it is too long is judged by the bytes that stand in the file, which
/// is the same for any size of blocks.
void BlockReader::add_record(TextBlock& block, std::size_t end) {
  if (std::exchange(dropping_, false)) return;
  if (end - record_begin_ > options_.max_document_bytes) {
    drop_record(block);
    dropping_ = false;
    return;
  }
  const bool whole = format_ == TextFormat::File || format_ == TextFormat::Pieces;
  const auto ends_line = [&] { return block.bytes[end - 1] == '\n' || block.bytes[end - 1] == '\r'; };
  while (!whole && end > record_begin_ && ends_line()) --end;
  const std::string_view text(block.bytes.data() + record_begin_, end - record_begin_);
  if (!is_blank(text) || format_ == TextFormat::File)
    block.records.push_back(
        {record_begin_, text.size(), record_line_, block_offset_ + static_cast<std::int64_t>(record_begin_)});
  else if (format_ != TextFormat::Paragraphs)  // there they separate
    ++blank_records_;
}

/// Reports the open record as too long.
void BlockReader::drop_record(TextBlock& block) {
  block.records.push_back(
      {record_begin_, 0, record_line_, block_offset_ + static_cast<std::int64_t>(record_begin_), true});
  dropping_ = true;
}

/// Each decision sees a whole piece and the byte after it, so that it does not depend on the size of the blocks.
void BlockReader::split_pieces(TextBlock& block, bool at_end) {
  const std::string_view bytes = block.bytes;
  while (bytes.size() - record_begin_ > options_.piece_bytes || (at_end && record_begin_ < bytes.size())) {
    const std::string_view rest = bytes.substr(record_begin_);
    const std::size_t size =
        rest.size() > options_.piece_bytes ? end_of_piece(rest, options_.piece_bytes) : rest.size();
    add_record(block, record_begin_ + size);
    record_line_ += std::count(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size), '\n');
    record_begin_ += size;
  }
  scanned_ = record_begin_;
}

void BlockReader::split(TextBlock& block, bool at_end) {
  if (format_ == TextFormat::Pieces) return split_pieces(block, at_end);
  const std::string& bytes = block.bytes;
  const bool by_line = format_ == TextFormat::Jsonl || format_ == TextFormat::Lines;
  while (format_ != TextFormat::File) {
    const std::size_t from = std::max(scanned_, searched_);
    const std::size_t end = bytes.find('\n', from);
    if (end == std::string::npos) {
      searched_ = bytes.size();
      break;
    }
    const bool closes = by_line || is_blank(std::string_view(bytes).substr(scanned_, end - scanned_));
    if (closes) {
      add_record(block, by_line ? end : scanned_);
      record_begin_ = end + 1;
      record_line_ = line_ + 1;
    }
    scanned_ = end + 1;
    ++line_;
  }
  if (!at_end) return;
  if (bytes.size() > record_begin_ || format_ == TextFormat::File) add_record(block, bytes.size());
  record_begin_ = scanned_ = bytes.size();
}

/// Whether the open record has too many bytes however it continues. A blank line may yet turn out to end a paragraph.
bool BlockReader::is_too_long(const TextBlock& block) const {
  const std::size_t limit = options_.max_document_bytes, size = block.bytes.size();
  if (size - record_begin_ <= limit) return false;
  const bool may_end = format_ == TextFormat::Paragraphs && size - scanned_ <= limit &&
                       is_blank(std::string_view(block.bytes).substr(scanned_));
  return !may_end || scanned_ - record_begin_ > limit;
}

/// Of a record that is skipped, only what says how it continues stays: of the open line one byte, blank if all are.
void BlockReader::forget_record(TextBlock& block) {
  std::string& bytes = block.bytes;
  const std::size_t line = std::max(scanned_, record_begin_), kept = line < bytes.size() ? 1 : 0;
  if (kept != 0) bytes[record_begin_] = is_blank(std::string_view(bytes).substr(line)) ? ' ' : 'x';
  block_offset_ += static_cast<std::int64_t>(bytes.size() - record_begin_ - kept);
  bytes.resize(record_begin_ + kept);
  scanned_ = record_begin_;
  searched_ = bytes.size();
}

/// Reads one more piece into the block and cuts it; false at the end of the file.
bool BlockReader::read_more(TextBlock& block) {
  const std::size_t before = block.bytes.size();
  block.bytes.resize(before + options_.block_bytes);
  block.bytes.resize(before + stream_->read(std::span(block.bytes).subspan(before)));
  const bool at_end = block.bytes.size() < before + options_.block_bytes;
  split(block, at_end);
  if (at_end) return false;
  if (!dropping_ && is_too_long(block)) drop_record(block);
  if (dropping_) forget_record(block);
  return true;
}

std::string place_of(const TextBlock& block, const TextBlock::Record& record) {
  return concat(block.file, ", line ", record.line, ", byte ", record.offset, ": ");
}

bool BlockReader::next(TextBlock& block) {
  block.records.clear();
  do {
    if (!stream_ && !open_next()) return false;
    block.file = file_;
    block.is_json = format_ == TextFormat::Jsonl;
    block.max_document_bytes = options_.max_document_bytes;
    block.limit_option = options_.limit_option;
    block.bytes.swap(carry_);
    carry_.clear();
    bool more = true;
    do {
      more = read_more(block);
    } while (more && block.records.empty() && record_begin_ == 0 && !dropping_);
    carry_.assign(block.bytes, record_begin_);
    block.bytes.resize(record_begin_ + simdjson::SIMDJSON_PADDING);
    block_offset_ += static_cast<std::int64_t>(record_begin_);
    scanned_ -= record_begin_;
    searched_ = std::max(searched_, record_begin_) - record_begin_;
    record_begin_ = 0;
    block.input_position = position();
    block.end.reset();
    if (!dropping_ && more) block.end = {next_input_ - 1, block_offset_, record_line_};
    if (!more) {
      block.end = {next_input_, 0, 1};
      closed_bytes_ += stream_->position();
      stream_.reset();
    }
  } while (block.records.empty() && !dropping_);
  return true;
}

struct DocumentParser::Json {
  simdjson::dom::parser parser;
};

DocumentParser::DocumentParser(std::vector<std::string> json_keys, Advice advice)
    : json_keys_(std::move(json_keys)),
      advice_(std::move(advice)),
      json_(std::make_unique<Json>()),
      values_(json_keys_.size()) {
  if (json_keys_.empty()) throw std::logic_error("DocumentParser: no key");
}
DocumentParser::~DocumentParser() = default;
DocumentParser::DocumentParser(DocumentParser&&) noexcept = default;

const std::vector<std::string_view>& DocumentParser::parse(const TextBlock& block, std::size_t record) {
  const TextBlock::Record& at = block.records[record];
  if (at.too_long)
    throw ConfigError(rule_got_fix(
        concat(place_of(block, at), "a document may have at most ", block.max_document_bytes, " bytes."), "more",
        concat(block.is_json ? "leave it out" : "cut the text by lines or paragraphs",
               block.limit_option == nullptr ? "" : concat(", or allow more: ", block.limit_option))));
  for (Value& value : values_) {
    value.texts.clear();
    value.is_array = false;
    value.is_utf8 = true;
  }
  if (block.is_json) {
    parse_json(block, at);
  } else {
    values_[0].texts.emplace_back(block.bytes.data() + at.begin, at.size);
    values_[0].is_utf8 = simdjson::validate_utf8(block.bytes.data() + at.begin, at.size);
  }
  return values_[0].texts;
}

void DocumentParser::parse_json(const TextBlock& block, const TextBlock::Record& record) {
  const auto bad = [&](const std::string& rule, const std::string& got, const std::string& fix) {
    throw ConfigError(
        rule_got_fix(concat(place_of(block, record), rule),
                     concat(got, ": ", excerpt(std::string_view(block.bytes).substr(record.begin, record.size))), fix));
  };
  constexpr std::size_t kKeptCapacity = 8 << 20;  // one huge line must not hold its memory for the rest of the run
  if (json_->parser.capacity() > kKeptCapacity && record.size < kKeptCapacity) json_ = std::make_unique<Json>();
  simdjson::dom::element document;
  const std::string_view line = std::string_view(block.bytes).substr(record.begin, record.size);
  if (const auto error = parse_json_line(json_->parser, line, document))
    bad("each line must be JSON.", simdjson::error_message(error), advice_.fix);
  if (!document.is_object()) bad("each line must be a JSON object.", "another value", advice_.fix);
  for (std::size_t key = 0; key < json_keys_.size(); ++key) {
    const auto value = last_member(document, json_keys_[key]);
    if (!value)
      bad(concat("each line must have the key \"", json_keys_[key], "\"."), "no such key",
          advice_.key_option == nullptr
              ? advice_.fix
              : concat("name the key of the texts by ", advice_.key_option, ", or ", advice_.fix));
    if (value->is_string()) {
      values_[key].texts.push_back(value->get_string().value_unsafe());
      continue;
    }
    simdjson::dom::array sentences;
    const std::string rule = concat("\"", json_keys_[key], "\" must be a string or an array of strings.");
    if (value->get(sentences) != simdjson::SUCCESS) bad(rule, "another value", advice_.fix);
    values_[key].is_array = true;
    for (const auto sentence : sentences) {
      if (!sentence.is_string()) bad(rule, "an array with another value", advice_.fix);
      values_[key].texts.push_back(sentence.get_string().value_unsafe());
    }
  }
}

TextReader::TextReader(const TextReaderOptions& options) : blocks_(options), parser_(options) {}

bool TextReader::next(std::string& document) {
  while (record_ == block_.records.size()) {
    record_ = 0;
    if (!blocks_.next(block_)) return false;
  }
  document.clear();
  for (const std::string_view text : parser_.parse(block_, record_)) {
    if (!document.empty()) document += ' ';
    document += text;
  }
  ++record_;
  return true;
}

}  // namespace megatron::data
