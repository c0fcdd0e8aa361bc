#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/model_config.h"
#include "megatron/families/mapping.h"
#include "megatron/plan/parameters/parameters.h"

// config.json of a Hugging Face folder <-> our options of the network.
namespace megatron::families {

struct HfFamily;  // hf_family.h

struct FolderConfig {
  const HfFamily* family = nullptr;  ///< null: no family of Hugging Face's holds the model
  config::ModelConfig model;
  std::vector<std::string> labels = {};  ///< the names of a classifier's classes, if they are known
  /// bos_token_id, eos_token_id, pad_token_id, decoder_start_token_id as the file has them (JSON values): nothing here
  /// uses them, they are handed on when the model is exported again.
  std::map<std::string, std::string> token_ids;
};

/// Reads config.json of any family of hf_family.h. Every field that could change the results is taken or refused by
/// name, also one that is not known at all; each size is checked. Reads the RoPE base and scaling as transformers 4
/// (rope_theta, rope_scaling) and transformers 5 (rope_parameters) write them. Throws ConfigError naming `file` and the
/// field.
FolderConfig parse_config(std::string_view text, const std::string& file);

/// The sizes that decide the weights of `model`, whose vocab_size and max_position_embeddings are given.
plan::ModelShape shape_of(const config::ModelConfig& model);

/// Throws ConfigError, beginning with `file`, where the heads, groups and widths of `model` do not fit each other, or
/// are too many to be meant.
void check_heads(const config::ModelConfig& model, const std::string& file);

/// The text of config.json, for transformers 4 and 5. `dtype`: "float32", "bfloat16", …; `theirs`: which tensors are
/// beside it, by their names (those of heads say which class of transformers it is).
std::string config_json(
    const FolderConfig& folder, const std::string& dtype,
    const std::function<bool(const std::string& name)>& theirs = [](const std::string&) { return false; });

}  // namespace megatron::families
