// Any bytes are either a GGUF file whose tensors lie in it, or a ConfigError; so is what it says of its tokenizer,
// which works then, and of its model, whose config.json is read or refused.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/files/gguf.h"
#include "megatron/base/text/utf8.h"
#include "megatron/interchange/gguf_read.h"
#include "megatron/text/files/gguf_tokenizer.h"
#include "megatron/text/tokenizer.h"

namespace {

template <class Work>
void refused_or_done(const Work& work) {
  try {
    work();
  } catch (const megatron::ConfigError& error) {
    if (!megatron::valid_utf8(error.what())) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  refused_or_done([&] {
    const Gguf file(bytes, "input");
    for (const GgufTensor& tensor : file.tensors())
      if (tensor.begin > size || tensor.bytes > size - tensor.begin) std::abort();
    refused_or_done([&] {
      const text::Tokenizer tokenizer(text::read_gguf_tokenizer(file));
      tokenizer.decode(tokenizer.encode("Before we proceed: 12\xC2\xBD", text::Specials::Recognised));
      text::gguf_named_tokens(file);
    });
    refused_or_done([&] { families::parse_config(interchange::gguf_config_json(file, bytes), "input"); });
  });
  return 0;
}
