#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/files/byte_stream.h"

// Documents out of files, one after another, in bounded memory:
//
//   TextReader reader({.inputs = {"a.jsonl.zst", "-"}});
//   std::string document;
//   while (reader.next(document)) …
//
// A pipeline takes the two halves apart: one thread reads blocks (BlockReader), several parse them (DocumentParser).
namespace megatron::data {

enum class TextFormat : std::uint8_t {
  Auto,   ///< Jsonl for .jsonl, .ndjson and .json (also with .gz, .zst or .xz) and for content that begins with '{';
          ///< else File
  Jsonl,  ///< each line is a JSON object; blank lines are skipped
  Lines,  ///< each line is a document; blank lines are skipped
  Paragraphs,  ///< blank lines separate documents
  File,        ///< each file is a document, also an empty one
  Pieces,  ///< each file is cut into documents of at most piece_bytes: after a line, else after a space, else between
           ///< characters; blank pieces are skipped
};

/// "auto", "jsonl", "lines", "paragraphs", "file" or "pieces"; anything else is a ConfigError.
TextFormat text_format_of(std::string_view name, const char* option = "--format");

struct TextReaderOptions {
  std::vector<std::string> inputs = {};  ///< files, in this order; "-" is standard input
  TextFormat format = TextFormat::Auto;
  std::string json_key = "text";
  const char* key_option = nullptr;           ///< by which the job is told that key; null: it is always this one
  std::size_t max_document_bytes = 64 << 20;  ///< a longer line, paragraph or file is never in memory whole
  const char* limit_option = nullptr;         ///< by which the job sets that limit; null: it cannot be set
  std::size_t piece_bytes = 4096;
  std::size_t block_bytes = 1 << 20;
};

/// A place between two records, from which reading can continue.
struct TextPosition {
  std::size_t input = 0;    ///< which of the inputs
  std::int64_t offset = 0;  ///< bytes of it, decompressed
  std::int64_t line = 1;
};

/// Whole records of one file, as they stand in it.
struct TextBlock {
  struct Record {
    std::size_t begin, size;  ///< in `bytes`
    std::int64_t line;        ///< from 1
    std::int64_t offset;      ///< byte offset in the (decompressed) file
    bool too_long = false;    ///< more than max_document_bytes: not there, and an error to parse
  };
  std::string file;
  bool is_json = false;
  std::size_t max_document_bytes = 0;
  const char* limit_option = nullptr;
  std::string bytes;  ///< ends with spare bytes that the JSON parser may read
  std::vector<Record> records;
  std::int64_t input_position = 0;       ///< bytes of all inputs read so far, before decompression
  std::optional<TextPosition> end = {};  ///< where the next block begins; none inside a record that is too long
};

/// Where a record is, for messages: "FILE, line 3, byte 41: ".
std::string place_of(const TextBlock& block, const TextBlock::Record& record);

/// Cuts the inputs into blocks of whole records. One thread at a time.
class BlockReader {
 public:
  /// Throws ConfigError when there are no inputs, one does not exist or is a folder, or pieces are asked for whose
  /// piece_bytes is not 4 to max_document_bytes.
  explicit BlockReader(TextReaderOptions options);
  /// A reader of memory, which the caller keeps alive.
  BlockReader(TextReaderOptions options, std::span<const std::byte> memory, const std::string& name);

  /// Goes on from where a block of the same inputs ended, before the first next(). Throws ConfigError where the input
  /// has become shorter.
  void start_at(const TextPosition& position);

  /// The next block; false at the end of all inputs. It has at least one record, but none while one that is too long is
  /// skipped: a record that never ends (/dev/zero) must not keep the caller from stopping.
  bool next(TextBlock& block);

  /// Bytes of all inputs read so far, before decompression.
  std::int64_t position() const { return closed_bytes_ + (stream_ ? stream_->position() : 0); }

  /// Blank lines and pieces that were skipped so far.
  std::int64_t blank_records() const { return blank_records_; }

  /// Size of all inputs as they lie on disk; nothing when one of them is a pipe.
  std::optional<std::int64_t> total_bytes() const { return total_bytes_; }

 private:
  bool open_next();
  void begin_stream(const std::string& name);
  bool read_more(TextBlock& block);
  void split(TextBlock& block, bool at_end);
  void split_pieces(TextBlock& block, bool at_end);
  void add_record(TextBlock& block, std::size_t end);
  void drop_record(TextBlock& block);
  void forget_record(TextBlock& block);
  bool is_too_long(const TextBlock& block) const;

  TextReaderOptions options_;
  std::optional<std::int64_t> total_bytes_ = 0;
  std::optional<ByteStream> stream_;
  std::size_t next_input_ = 0;
  std::int64_t closed_bytes_ = 0;  // of the inputs that are done
  std::int64_t blank_records_ = 0;
  std::string file_;
  TextFormat format_ = TextFormat::File;  // of the open file
  std::string carry_;                     // the record that the last block broke off

  // Of the open file, relative to the block's bytes where not said otherwise.
  std::int64_t block_offset_ = 0;  // of the block in the file
  std::size_t scanned_ = 0;        // lines before this are dealt with
  std::size_t searched_ = 0;       // there is no end of line in [scanned_, searched_)
  std::size_t record_begin_ = 0;
  std::int64_t line_ = 1, record_line_ = 1;
  bool dropping_ = false;  // the record at record_begin_ is reported as too long; what it still has is skipped
};

/// Takes records apart. One per thread.
class DocumentParser {
 public:
  /// What an error about a line tells the user to do, by the options of the job that reads it.
  struct Advice {
    std::string fix = "correct the line or take it out";
    const char* key_option = nullptr;  ///< by which the job is told the key
  };
  explicit DocumentParser(std::string json_key) : DocumentParser(std::move(json_key), Advice()) {}
  explicit DocumentParser(const TextReaderOptions& options)
      : DocumentParser(options.json_key, {.key_option = options.key_option}) {}
  DocumentParser(std::string json_key, Advice advice)
      : DocumentParser(std::vector<std::string>{std::move(json_key)}, std::move(advice)) {}
  /// Takes the texts of several keys out of each JSON line.
  DocumentParser(std::vector<std::string> json_keys, Advice advice);
  ~DocumentParser();
  DocumentParser(DocumentParser&&) noexcept;

  /// The texts of a record under the first key: one, or for JSON whose value is an array of strings, one each. The
  /// views live until the next call and as long as the block. A key that occurs twice means its last value, as in
  /// Python. Throws ConfigError naming file, line and byte offset when a record is too long, or a JSON line is not an
  /// object with every key, in UTF-8 without lone surrogates.
  const std::vector<std::string_view>& parse(const TextBlock& block, std::size_t record);

  /// What the last record had under a key.
  struct Value {
    std::vector<std::string_view> texts;
    bool is_array = false;
    bool is_utf8 = true;  ///< plain text may hold any bytes
  };
  const Value& value(std::size_t key) const { return values_[key]; }

 private:
  struct Json;
  void parse_json(const TextBlock& block, const TextBlock::Record& record);

  std::vector<std::string> json_keys_;
  Advice advice_;
  std::unique_ptr<Json> json_;
  std::vector<Value> values_;
};

/// Both halves in one thread.
class TextReader {
 public:
  explicit TextReader(const TextReaderOptions& options);

  /// The next document; an array of sentences is joined by spaces. False at the end.
  bool next(std::string& document);

  std::optional<std::int64_t> total_bytes() const { return blocks_.total_bytes(); }
  /// Bytes of the inputs read so far, before decompression.
  std::int64_t position() const { return block_.input_position; }

 private:
  BlockReader blocks_;
  DocumentParser parser_;
  TextBlock block_;
  std::size_t record_ = 0;
};

}  // namespace megatron::data
