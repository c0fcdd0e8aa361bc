#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/text_reader.h"
#include "megatron/text/tokenizer.h"

namespace megatron::data {

/// What preprocessing needs of a tokenizer.
struct TextEncoder {
  /// Appends the ids of a text.
  using Encode = std::function<void(std::string_view text, std::vector<std::int32_t>& ids)>;
  std::function<Encode()> make;  ///< called once in each worker thread
  std::int64_t vocab_size = 0;
};

/// The encoder of `tokenizer`, which must outlive it. Special tokens written in the text are text.
TextEncoder encoder_of(const text::Tokenizer& tokenizer);

struct PreprocessOptions {
  TextReaderOptions text = {};
  std::string output_prefix = "";  ///< writes PREFIX_KEY_document.{bin,idx}
  bool append_eod = false;
  std::int32_t eod = -1;  ///< needed with append_eod
  int workers = 1;        ///< threads that parse and tokenize; reading and writing have one more each
};

struct PreprocessResult {
  std::string prefix;  ///< of the pair that was written
  std::int64_t documents = 0, sequences = 0, tokens = 0, text_bytes = 0;
  std::int64_t peak_bytes = 0;  ///< most input text that was under way at once
};

/// Called now and then from the calling thread: input bytes read, all input bytes (0: not known), documents written.
using PreprocessProgress = std::function<void(std::int64_t, std::int64_t, std::int64_t)>;

/// Text to a .bin/.idx pair, byte for byte as Megatron-LM's tools/preprocess_data.py: a text without tokens adds no
/// sequence but its document counts, and the end-of-document token belongs to a document's last sequence.
///
/// One thread reads and decompresses, `workers` parse and tokenize, the caller writes in the order of the input. The
/// text under way is bounded, so memory does not grow with the input. The result is the same for any number of workers.
/// Of several bad lines the first is reported. Nothing stands under the final names before all of it is on disk.
PreprocessResult preprocess(const PreprocessOptions& options, const TextEncoder& encoder,
                            const PreprocessProgress& progress = {});

}  // namespace megatron::data
