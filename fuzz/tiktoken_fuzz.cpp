// Any bytes are either a rank file of tiktoken whose tokenizer works, or a ConfigError; never a crash. The number of
// ranks says which tokenizer it is, so what mutations leave whole is seldom more than lines that are read and refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/text/files/tiktoken_file.h"
#include "megatron/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  looks_like_tiktoken(bytes);
  try {
    const Tokenizer tokenizer(parse_tiktoken(bytes, "input", "input.tiktoken"));
    tokenizer.decode(tokenizer.encode(bytes.substr(0, 512)));
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
