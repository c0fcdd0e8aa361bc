// Any bytes are either a tokenizer.json whose tokenizer works, with offsets and without, or a ConfigError; never a
// crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/text/files/token_spellings.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/vocabulary.h"

namespace {

/// Whether decoding gives every text back: GPT-2's way to byte-level BPE, no normalization, every byte a token, no
/// token that takes white space.
bool loses_nothing(const megatron::text::Tokenizer& tokenizer) {
  const auto& vocabulary = tokenizer.vocabulary();
  for (const auto& special : vocabulary.specials)
    if (special.lstrip || special.rstrip) return false;
  for (int byte = 0; byte < 256; ++byte)
    if (!tokenizer.token_to_id(std::string(1, static_cast<char>(byte)))) return false;
  return !vocabulary.word_piece && !vocabulary.normalization && !vocabulary.pipeline && !vocabulary.unigram &&
         !vocabulary.characters && !vocabulary.word_level;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bool is_tokenizer = false;
  try {
    const megatron::text::Tokenizer tokenizer(megatron::text::parse_tokenizer_json(bytes, "input"));
    is_tokenizer = true;
    const std::string text(bytes.substr(0, 4096));
    const auto ids = tokenizer.encode(text, megatron::text::Specials::Recognised);
    const std::string back = tokenizer.decode(ids);
    if (loses_nothing(tokenizer) && back != text) std::abort();
    const auto placed = tokenizer.encoder().encode_with_offsets(text, megatron::text::Specials::Recognised);
    if (placed.ids != ids || placed.bytes.size() != ids.size()) std::abort();
    for (const auto& span : placed.bytes)
      if (span.begin > span.end || span.end > text.size()) std::abort();
  } catch (const megatron::ConfigError&) {
  }
  if (is_tokenizer) return 0;  // and no vocab.json
  try {
    const std::size_t cut = bytes.find('\n');
    if (cut == std::string_view::npos) return 0;
    const std::string_view merges = bytes.substr(cut + 1);
    megatron::text::parse_vocab_and_merges(megatron::text::read_vocabulary_document(bytes.substr(0, cut), "vocab"),
                                           "vocab", {}, merges, "merges");
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
