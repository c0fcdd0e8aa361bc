#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace megatron::interchange {

/// How the states of a text's tokens become one vector, as folders of sentence-transformers say it.
struct TextPooling {
  enum class Kind : std::uint8_t { Mean, First, Max };
  Kind kind = Kind::Mean;
  bool normalized = false;      ///< divided by its length
  std::int64_t max_tokens = 0;  ///< per string; 0: the model's positions
  bool lower_case = false;      ///< strings are put into lower case first
  std::string prompt;           ///< what precedes each string: the prompt named by default
};

/// Reads it from `folder`: its modules.json, the Pooling among them, sentence_bert_config.json and
/// config_sentence_transformers.json. Without them the mean as it is, as sentence-transformers takes such a folder.
/// Throws ConfigError for what is damaged or not known here.
TextPooling read_pooling(const std::filesystem::path& folder);

/// Which of the files that read_pooling() reads are there, as paths inside of `folder`.
std::vector<std::filesystem::path> pooling_files(const std::filesystem::path& folder);

}  // namespace megatron::interchange
