#pragma once
#include <functional>
#include <string>
#include <vector>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/samples/masking_vocabulary.h"
#include "tests/data/support.h"

namespace megatron::data {

/// 40 documents; document d has d % 6 sentences of 1 to 9 tokens of [10, 90).
inline void write_sentence_pair(const std::string& prefix) {
  IndexedDatasetWriter writer(prefix, DType::U16);
  std::int32_t next = 0;
  for (int d = 0; d < 40; ++d) {
    std::vector<std::int32_t> tokens, lengths;
    for (int s = 0; s < d % 6; ++s) {
      lengths.push_back((7 * d + 3 * s) % 9 + 1);
      for (int k = 0; k < lengths.back(); ++k) tokens.push_back(10 + next++ % 80);
    }
    writer.add_document(tokens, lengths);
  }
  writer.publish();
}

/// 100 tokens, of which every third from 10 on continues a word; 20 sentinels.
inline MaskingVocabulary small_vocabulary() {
  MaskingVocabulary vocabulary{.size = 120, .pad = 0, .cls = 1, .sep = 2, .mask = 3, .begin = 4, .end = 5};
  vocabulary.continues.resize(120);
  for (std::size_t i = 10; i < 100; i += 3) vocabulary.continues[i] = 1;
  for (std::int64_t id = 100; id < 120; ++id) vocabulary.sentinels.push_back(id);
  return vocabulary;
}

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

}  // namespace megatron::data
