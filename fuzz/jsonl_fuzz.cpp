#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/data/files/text_reader.h"

// The first byte of an input chooses format, block size and limit; the rest is the file, which may be gzip, zstd or xz.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  if (size == 0) return 0;
  data::TextReaderOptions options;
  options.format = static_cast<data::TextFormat>(data[0] % 6);
  options.piece_bytes = 64;
  options.block_bytes = (data[0] & 0x20) != 0 ? 16 : 4096;
  options.max_document_bytes = (data[0] & 0x40) != 0 ? 100 : 1 << 16;
  try {
    data::BlockReader reader(options, std::as_bytes(std::span(data + 1, size - 1)), "input");
    data::DocumentParser parser(
        (data[0] & 0x80) != 0 ? std::vector<std::string>{"text", "x"} : std::vector<std::string>{"text"}, {});
    // A few bytes of gzip, zstd or xz can stand for gigabytes.
    data::TextBlock block;
    for (int blocks = 0; blocks < 1000 && reader.next(block); ++blocks) {
      for (std::size_t i = 0; i < block.records.size(); ++i) {
        try {
          for (const std::string_view text : parser.parse(block, i))
            if (!text.empty() && text.front() == '\1' && text.back() == '\2') return 0;  // touch both ends
        } catch (const ConfigError&) {
        }
      }
    }
  } catch (const ConfigError&) {
  }
  return 0;
}
