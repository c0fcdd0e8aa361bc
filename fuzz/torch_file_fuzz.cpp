// Any bytes are either an archive whose files lie in it, side by side, or a ConfigError; data.pkl is read as
// pickle_fuzz does.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/interchange/megatron_lm/pickle.h"
#include "megatron/interchange/megatron_lm/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  using namespace megatron::interchange;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    std::uint64_t total = 0;
    const auto entries = read_zip(bytes, "input");
    for (const auto& [name, entry] : entries) {
      if (entry.begin > size || entry.size > size - entry.begin) std::abort();
      total += entry.size;
    }
    if (total > size) std::abort();
    for (const auto& [name, entry] : entries)
      if (name.ends_with("data.pkl")) read_pickle(bytes.subspan(entry.begin, entry.size), name);
  } catch (const ConfigError&) {
  }
  return 0;
}
