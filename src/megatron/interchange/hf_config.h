#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/model_config.h"
#include "megatron/interchange/mapping.h"
#include "megatron/plan/parameters.h"

// config.json of a Hugging Face folder <-> our options of the network. No torch here.
namespace megatron::interchange {

enum class Family : std::uint8_t { Gpt2, Llama, Bert, T5 };

struct FolderConfig {
  Family family = Family::Gpt2;
  config::ModelConfig model;
  std::int64_t token_types = 0;          ///< BERT's
  std::vector<std::string> labels = {};  ///< the names of a classifier's classes, if they are known
  /// bos_token_id, eos_token_id, pad_token_id, decoder_start_token_id as the file has them (JSON values): nothing here
  /// uses them, they are handed on when the model is exported again.
  std::map<std::string, std::string> token_ids;
};

/// Reads config.json: model_type gpt2, llama, bert, megatron-bert, t5, and mistral and qwen2 where they are no more
/// than a Llama (no sliding window). Every field that could change the results is taken or refused by name, also one
/// that is not known at all; each size is checked. Reads the RoPE base and scaling as transformers 4 (rope_theta,
/// rope_scaling) and transformers 5 (rope_parameters) write them. Throws ConfigError naming `file` and the field.
FolderConfig parse_config(std::string_view text, const std::string& file);

/// The sizes that decide the weights of `model`, whose vocab_size and max_position_embeddings are given.
plan::GptShape shape_of(const config::ModelConfig& model);

/// Throws ConfigError, beginning with `file`, where the heads, groups and widths of `model` do not fit each other, or
/// are too many to be meant.
void check_heads(const config::ModelConfig& model, const std::string& file);

/// The family whose folder can hold `model`. Throws ConfigError naming the options that none of them has.
Family family_of(const config::ModelConfig& model);

/// The text of config.json, for transformers 4 and 5. `dtype`: "float32", "bfloat16", …; `bert_architecture`: the class
/// that has the parts of a BERT without the head of a task.
std::string config_json(const FolderConfig& folder, const std::string& dtype,
                        const std::string& bert_architecture = "BertModel");

}  // namespace megatron::interchange
