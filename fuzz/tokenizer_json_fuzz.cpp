// Any bytes are either a tokenizer.json whose tokenizer works, or a ConfigError; never a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/tokenizer_files.h"
#include "megatron/text/vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const megatron::text::Tokenizer tokenizer(megatron::text::parse_tokenizer_json(bytes, "input"));
    const std::string text(bytes.substr(0, 4096));
    if (tokenizer.decode(tokenizer.encode(text, megatron::text::Specials::Recognised)) != text) std::abort();
  } catch (const megatron::ConfigError&) {
  }
  try {
    const std::size_t cut = bytes.find('\n');
    const std::string_view merges = cut == std::string_view::npos ? "" : bytes.substr(cut + 1);
    megatron::text::parse_vocab_and_merges(bytes.substr(0, cut), "vocab", merges, "merges");
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
