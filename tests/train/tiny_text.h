#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/data/files/indexed_dataset.h"

namespace megatron::train::testing {

/// Writes PREFIX.bin and .idx: so many documents of 30 tokens below 60, which tiny_config() has.
inline void write_tiny_text(const std::string& prefix, std::uint64_t documents) {
  data::IndexedDatasetWriter writer(prefix, data::DType::U16);
  const std::vector<std::int32_t> lengths = {30};
  for (std::uint64_t document = 0; document < documents; ++document) {
    std::vector<std::int32_t> tokens;
    for (std::uint64_t i = 0; i < 30; ++i)
      tokens.push_back(static_cast<std::int32_t>(random_word(1, document, i) % 60));
    writer.add_document(tokens, lengths);
  }
  writer.publish();
}

}  // namespace megatron::train::testing
