// Any bytes are either a SentencePiece model whose tokenizer works, or a ConfigError; never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/text/files/sentencepiece_file.h"
#include "megatron/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const Tokenizer tokenizer(parse_sentencepiece_model(bytes, "input", "tokenizer.model"));
    for (const std::string_view text :
         {bytes.substr(0, 512), std::string_view("Before we proceed: \xE2\x96\x81 1\xC2\xBD")})
      tokenizer.decode(tokenizer.encode(text, Specials::Recognised));
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
