// A vocab.txt and a text, parted by a zero byte; the first byte chooses BERT's normalization. The file is a tokenizer
// or a ConfigError, and what comes out of a text is what comes out of its words.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/normalize/bert_text.h"
#include "megatron/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron::text;
  if (size == 0) return 0;
  const BertNormalization options{(data[0] & 1) != 0, (data[0] & 2) != 0, (data[0] & 4) != 0, (data[0] & 8) != 0};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t cut = std::min(bytes.find('\0'), bytes.size());
  const std::string_view text = bytes.substr(std::min(cut + 1, bytes.size()));
  try {
    const Tokenizer tokenizer(parse_vocab_txt(bytes.substr(0, cut), "vocab", options));
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    tokenizer.decode(ids);
    tokenizer.encode(text, Specials::Recognised);
    std::vector<std::int32_t> of_words;
    const std::string normalized = bert_normalize(text, options);
    Encoder encoder = tokenizer.encoder();
    for_each_bert_word(normalized, [&](std::string_view word) {
      if (word.empty()) std::abort();
      encoder.encode_append(word, of_words);
    });
    if (options.strip_accents || options.lower_case) return 0;  // a word alone may be normalized once more
    if (ids != of_words) std::abort();
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
