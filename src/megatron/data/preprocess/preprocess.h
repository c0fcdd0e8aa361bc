#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/files/text_reader.h"
#include "megatron/text/tokenizer.h"

namespace megatron::data {

/// What preprocessing needs of a tokenizer.
struct TextEncoder {
  /// Appends the ids of a text; gives how many of its bytes were no UTF-8 and have been replaced. Throws ConfigError
  /// for a text that the tokenizer refuses, after which it takes others.
  using Encode = std::function<std::int64_t(std::string_view text, std::vector<std::int32_t>& ids)>;
  std::function<Encode()> make;  ///< called once in each worker thread
  std::int64_t vocab_size = 0;
  std::string fingerprint = "";  ///< equal for encoders that give equal ids
};

/// What stands around the tokens of a text: nothing, or what the tokenizer's template sets there (Tokenizer::frame()).
enum class Around : std::uint8_t { Nothing, Template };

/// The encoder of `tokenizer`, which must outlive it. `specials`: what special tokens are that stand in a text.
TextEncoder encoder_of(const text::Tokenizer& tokenizer, Around around = Around::Nothing,
                       text::Specials specials = text::Specials::AsText);

enum class OnError : std::uint8_t { Stop, Skip };
/// "stop" or "skip"; anything else is a ConfigError.
OnError on_error_of(std::string_view name);

struct PreprocessOptions {
  TextReaderOptions text = {};  ///< its json_key is not used
  std::vector<std::string> json_keys = {"text"};
  std::string output_prefix = "";  ///< writes PREFIX_KEY_document.{bin,idx} for each key, or PREFIX_KEY_sentence
  bool append_eod = false;
  std::int32_t eod = -1;         ///< needed with append_eod
  bool split_sentences = false;  ///< each sentence a sequence; an array of strings is taken as it is
  bool keep_newlines = false;    ///< with split_sentences: white space after a sentence belongs to it
  std::string language = "en";   ///< whose abbreviations count for split_sentences
  OnError on_error = OnError::Stop;
  int workers = 1;                     ///< threads that parse and tokenize; reading and writing have one more each
  std::int64_t note_bytes = 64 << 20;  ///< of text between places from which an interrupted run can resume
  bool restart = false;                ///< throw away what an interrupted run left
  std::function<void(const std::string&)> on_bad_line = {};  ///< called with what is wrong, in the order of the input
};

struct PreprocessResult {
  struct Pair {
    std::string key, prefix;
    std::int64_t documents = 0, sequences = 0, tokens = 0;
  };
  std::vector<Pair> pairs;  ///< one a key
  std::int64_t text_bytes = 0;
  std::int64_t kept_bytes = 0;       ///< of text_bytes, what an interrupted run had done
  std::int64_t bad_lines = 0;        ///< skipped
  std::int64_t blank_lines = 0;      ///< lines and pieces of white space, skipped
  std::int64_t empty_documents = 0;  ///< documents without a token, of all pairs
  std::int64_t not_utf8 = 0;         ///< documents of plain text with bytes that are not UTF-8
  std::int64_t replaced_bytes = 0;   ///< bytes in place of which the tokenizer read U+FFFD
  std::int64_t peak_bytes = 0;       ///< most input text that was under way at once
};

/// Called now and then from the calling thread: input bytes read, all input bytes (0: not known), documents written.
/// First once before the work, with what an interrupted run had done.
using PreprocessProgress = std::function<void(std::int64_t, std::int64_t, std::int64_t)>;

/// Text to .bin/.idx pairs, byte for byte as Megatron-LM's tools/preprocess_data.py: a text without tokens adds no
/// sequence but its document counts, and the end-of-document token belongs to a document's last sequence.
///
/// One thread reads and decompresses, `workers` parse and tokenize, the caller writes in the order of the input. The
/// text under way is bounded, so memory does not grow with the input. The result is the same for any number of workers.
///
/// A bad line is one that DocumentParser or the tokenizer refuses. With OnError::Stop the first ends the run; with Skip
/// they are counted and skipped, none of their keys adding a document. Damage of a compressed file ends the run
/// either way.
///
/// Nothing stands under the final names before all of it is on disk. A run that is killed or fails resumes where it was
/// when it is called again with the same inputs (names, sizes, times) and options; see preprocess_parts.h. Inputs that
/// are read but once, such as standard input, start over.
PreprocessResult preprocess(const PreprocessOptions& options, const TextEncoder& encoder,
                            const PreprocessProgress& progress = {});

}  // namespace megatron::data
