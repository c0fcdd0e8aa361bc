#pragma once
#include <cstdint>
#include <filesystem>

namespace megatron::interchange {

/// How the states of a text's tokens become one vector, as folders of sentence-transformers say it.
struct TextPooling {
  enum class Kind : std::uint8_t { Mean, First, Max };
  Kind kind = Kind::Mean;
  bool normalized = false;      ///< divided by its length
  std::int64_t max_tokens = 0;  ///< per string; 0: the model's positions
};

/// Reads it from `folder`: its modules.json, the Pooling among them, and sentence_bert_config.json. Without them the
/// mean as it is, as sentence-transformers takes such a folder. Throws ConfigError for what is damaged or not known
/// here.
TextPooling read_pooling(const std::filesystem::path& folder);

}  // namespace megatron::interchange
