#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::config {

/// The words that a YAML file of Megatron-LM's options (`--yaml-cfg`) stands for.
struct YamlWords {
  std::vector<std::string> words;                            ///< "--num-layers=24"
  std::vector<std::pair<std::string, std::string>> ignored;  ///< "language_model.gated_linear_unit true", and why
};

/// What the keys of `text` mean to `world_size` ranks: those of Megatron-LM's parser under their names in Python, and
/// those of its TransformerConfig and ModelParallelConfig, in sections `language_model` and `model_parallel` or outside
/// of them. A key without value (null) has its default. Throws ConfigError with all keys that are not known and all
/// values that are none of their key.
YamlWords yaml_words(std::string_view text, const std::string& name, int world_size);

/// The file of `--yaml-cfg FILE` among words of the command line; "" where there is none.
std::string yaml_file_of(const std::vector<std::string>& words);

}  // namespace megatron::config
