#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "megatron/families/hf_config.h"
#include "megatron/families/json_fields.h"
#include "megatron/families/mapping_builder.h"

// What BERT and RoBERTa share as folders of Hugging Face: fields of config.json and names of tensors.
namespace megatron::models::bert {

/// A class of transformers, without what its name begins with, and the head that it has (model.head).
struct Class {
  const char *theirs, *head;
};

/// The head that "architectures" names: a class of `classes` whose name begins with `before`, and its labels.
void read_encoder_head(const nlohmann::json& object, families::JsonFields& fields, families::FolderConfig& folder,
                       std::span<const Class> classes, std::string_view before);

/// Sizes, activation, epsilon and dropout.
void read_encoder(families::JsonFields& fields, config::ModelConfig& model);
void write_encoder(const config::ModelConfig& model, nlohmann::json& object);

/// Embeddings and layers, whose tensors' names begin with `prefix`, "bert." or "". Blocks end with a norm there; ours
/// begin with it (model/block.h): the norm of the embedding is the first layer's "input_layernorm", that of each
/// layer's output the next one's, and the last one's "encoder.final_layernorm". With `norms_first`, a MegatronBert's,
/// they are where ours are.
void map_encoder(families::MappingBuilder& build, const plan::ModelShape& shape, const std::string& prefix,
                 bool norms_first);

/// Whether a folder of one of them can hold it: the order of norms, and how positions are counted, aside.
bool is_encoder(const config::ModelConfig& model, const plan::ModelShape& shape);

}  // namespace megatron::models::bert
