#include "megatron/data/text_reader.h"

#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

/// The part of a message that shows the text in question, safe for a terminal.
std::string excerpt(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 60)) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return shown + (text.size() > 60 ? "…" : "");
}

TextFormat format_of_name(std::string_view name) {
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.remove_suffix(packed.size());
  for (const std::string_view json : {".jsonl", ".ndjson", ".json"})
    if (name.ends_with(json)) return TextFormat::Jsonl;
  return name.ends_with(".txt") ? TextFormat::File : TextFormat::Auto;
}

/// Where a piece that begins `text` ends, which goes on beyond `limit` bytes.
std::size_t end_of_piece(std::string_view text, std::size_t limit) {
  for (const char end : {'\n', ' '})
    if (const std::size_t last = text.rfind(end, limit - 1); last != std::string_view::npos) return last + 1;
  std::size_t cut = limit;
  const auto continues = [&] { return (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; };
  while (cut > limit - 4 && continues()) --cut;
  return continues() ? limit : cut;  // what is no UTF-8 is cut anywhere
}

}  // namespace

TextFormat text_format_of(std::string_view name) {
  if (name == "auto") return TextFormat::Auto;
  if (name == "jsonl") return TextFormat::Jsonl;
  if (name == "lines") return TextFormat::Lines;
  if (name == "paragraphs") return TextFormat::Paragraphs;
  if (name == "file") return TextFormat::File;
  if (name == "pieces") return TextFormat::Pieces;
  throw ConfigError(
      rule_got_fix("a text format is auto, jsonl, lines, paragraphs, file or pieces.", std::string(name)));
}

BlockReader::BlockReader(TextReaderOptions options) : options_(std::move(options)) {
  if (options_.inputs.empty()) throw ConfigError(rule_got_fix("there must be an input file.", "none"));
  const bool fits = options_.piece_bytes >= 4 && options_.piece_bytes <= options_.max_document_bytes;
  if (options_.format == TextFormat::Pieces && !fits)
    throw ConfigError(rule_got_fix(concat("a piece must have 4 to ", options_.max_document_bytes, " bytes."),
                                   concat(options_.piece_bytes)));
  for (const std::string& path : options_.inputs) {
    struct stat info {};
    if (path != "-" && ::stat(path.c_str(), &info) != 0)
      throw ConfigError(rule_got_fix("an input must be a readable file.", concat(path, ": ", std::strerror(errno))));
    if (path == "-" || !S_ISREG(info.st_mode)) total_bytes_.reset();
    if (total_bytes_) *total_bytes_ += info.st_size;
  }
}

BlockReader::BlockReader(TextReaderOptions options, std::span<const std::byte> memory, const std::string& name)
    : options_(std::move(options)), total_bytes_(static_cast<std::int64_t>(memory.size())) {
  options_.inputs.clear();
  stream_.emplace(memory, name);
  begin_stream(name);
}

bool BlockReader::open_next() {
  if (next_input_ == options_.inputs.size()) return false;
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
  format_ = options_.format == TextFormat::Auto ? format_of_name(name) : options_.format;
  const bool byte_order_mark = carry_.starts_with("\xEF\xBB\xBF");
  if (format_ == TextFormat::Auto) {
    const auto first = carry_.find_first_not_of(" \t\r\n", byte_order_mark ? 3 : 0);
    format_ = first != std::string::npos && carry_[first] == '{' ? TextFormat::Jsonl : TextFormat::File;
  }
  if (format_ == TextFormat::Jsonl && byte_order_mark) scanned_ = record_begin_ = 3;
}

void BlockReader::too_long() const {
  throw ConfigError(rule_got_fix(
      concat(file_, ", line ", record_line_, ", byte ", block_offset_ + static_cast<std::int64_t>(record_begin_),
             ": a document may have at most ", options_.max_document_bytes, " bytes."),
      "more",
      format_ == TextFormat::File ? "cut the text by lines or paragraphs, or raise the limit" : "raise the limit"));
}

/// Closes the record [record_begin_, end).
void BlockReader::add_record(TextBlock& block, std::size_t end) {
  const std::string_view text(block.bytes.data() + record_begin_, end - record_begin_);
  if (text.size() > options_.max_document_bytes) too_long();
  if (!is_blank(text) || format_ == TextFormat::File)
    block.records.push_back(
        {record_begin_, text.size(), record_line_, block_offset_ + static_cast<std::int64_t>(record_begin_)});
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
      std::size_t text_end = by_line ? end : scanned_;
      while (text_end > record_begin_ && (bytes[text_end - 1] == '\n' || bytes[text_end - 1] == '\r')) --text_end;
      add_record(block, text_end);
      record_begin_ = end + 1;
      record_line_ = line_ + 1;
    }
    scanned_ = end + 1;
    ++line_;
  }
  if (!at_end) return;
  std::size_t text_end = bytes.size();
  if (format_ != TextFormat::File)
    while (text_end > record_begin_ && (bytes[text_end - 1] == '\n' || bytes[text_end - 1] == '\r')) --text_end;
  if (text_end > record_begin_) add_record(block, text_end);
  record_begin_ = scanned_ = bytes.size();
}

bool BlockReader::next(TextBlock& block) {
  block.records.clear();
  while (block.records.empty()) {
    if (!stream_ && !open_next()) return false;
    block.file = file_;
    block.is_json = format_ == TextFormat::Jsonl;
    block.bytes.swap(carry_);
    carry_.clear();
    bool at_end = false;
    do {
      const std::size_t before = block.bytes.size();
      block.bytes.resize(before + options_.block_bytes);
      block.bytes.resize(before + stream_->read(std::span(block.bytes).subspan(before)));
      at_end = block.bytes.size() < before + options_.block_bytes;
      split(block, at_end);
      if (block.bytes.size() - record_begin_ > options_.max_document_bytes) too_long();
    } while (!at_end && block.records.empty() && record_begin_ == 0);
    carry_.assign(block.bytes, record_begin_);
    block.bytes.resize(record_begin_ + simdjson::SIMDJSON_PADDING);
    block_offset_ += static_cast<std::int64_t>(record_begin_);
    scanned_ -= record_begin_;
    searched_ = std::max(searched_, record_begin_) - record_begin_;
    record_begin_ = 0;
    block.input_position = closed_bytes_ + stream_->position();
    if (at_end) {
      closed_bytes_ += stream_->position();
      stream_.reset();
    }
  }
  return true;
}

struct DocumentParser::Json {
  simdjson::dom::parser parser;
};

DocumentParser::DocumentParser(std::string json_key)
    : json_key_(std::move(json_key)), json_(std::make_unique<Json>()) {}
DocumentParser::~DocumentParser() = default;
DocumentParser::DocumentParser(DocumentParser&&) noexcept = default;

const std::vector<std::string_view>& DocumentParser::parse(const TextBlock& block, std::size_t record) {
  texts_.clear();
  const TextBlock::Record& at = block.records[record];
  if (block.is_json)
    parse_json(block, at);
  else
    texts_.emplace_back(block.bytes.data() + at.begin, at.size);
  return texts_;
}

void DocumentParser::parse_json(const TextBlock& block, const TextBlock::Record& record) {
  const auto bad = [&](const std::string& rule, const std::string& got) {
    throw ConfigError(
        rule_got_fix(concat(block.file, ", line ", record.line, ", byte ", record.offset, ": ", rule),
                     concat(got, ": ", excerpt(std::string_view(block.bytes).substr(record.begin, record.size)))));
  };
  constexpr std::size_t kKeptCapacity = 8 << 20;  // one huge line must not hold its memory for the rest of the run
  if (json_->parser.capacity() > kKeptCapacity && record.size < kKeptCapacity) json_ = std::make_unique<Json>();
  simdjson::dom::element document;
  if (const auto error = json_->parser.parse(block.bytes.data() + record.begin, record.size, false).get(document))
    bad("each line must be JSON.", simdjson::error_message(error));
  simdjson::dom::object object;
  if (document.get(object) != simdjson::SUCCESS) bad("each line must be a JSON object.", "another value");
  std::optional<simdjson::dom::element> value;
  for (const auto field : object)
    if (field.key == json_key_) value = field.value;
  if (!value) bad(concat("each line must have the key \"", json_key_, "\" (--json-key)."), "no such key");
  if (value->is_string()) {
    texts_.push_back(value->get_string().value_unsafe());
    return;
  }
  simdjson::dom::array sentences;
  const std::string rule = concat("\"", json_key_, "\" must be a string or an array of strings.");
  if (value->get(sentences) != simdjson::SUCCESS) bad(rule, "another value");
  for (const auto sentence : sentences) {
    if (!sentence.is_string()) bad(rule, "an array with another value");
    texts_.push_back(sentence.get_string().value_unsafe());
  }
}

TextReader::TextReader(const TextReaderOptions& options) : blocks_(options), parser_(options.json_key) {}

bool TextReader::next(std::string& document) {
  if (record_ == block_.records.size()) {
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
