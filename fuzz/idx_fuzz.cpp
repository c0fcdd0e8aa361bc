#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/pair_summary.h"

// An input is an .idx file followed by its .bin file; the first 4 bytes say how long the .idx is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  std::uint32_t idx_size = 0;
  if (size < sizeof idx_size) return 0;
  std::memcpy(&idx_size, data, sizeof idx_size);
  const auto all = std::as_bytes(std::span(data, size)).subspan(sizeof idx_size);
  const auto idx = all.first(std::min<std::size_t>(idx_size, all.size()));
  // Copies of their own, so that a read past either is seen.
  const std::vector<std::byte> idx_copy(idx.begin(), idx.end());
  const std::vector<std::byte> bin_copy(all.begin() + static_cast<std::ptrdiff_t>(idx.size()), all.end());
  try {
    const data::IndexedDataset pair(idx_copy, bin_copy, "input");
    std::vector<std::int64_t> tokens;
    // Entries first one by one, because verify() ends at the first bad one.
    for (std::int64_t i = 0; i < pair.size(); ++i) {
      try {
        tokens.resize(pair.raw(i).size() / data::item_size(pair.dtype()));
        pair.read(i, 0, tokens);
        if (pair.has_modes()) static_cast<void>(pair.mode(i));
      } catch (const ConfigError&) {
      }
    }
    data::summarize(pair);
  } catch (const ConfigError&) {
  }
  return 0;
}
