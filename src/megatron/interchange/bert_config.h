#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "megatron/interchange/hf_config.h"
#include "megatron/interchange/json_fields.h"

// config.json of a BERT folder: with the heads of its pretraining, or with that of a task; and of any model's classes.
// A BERT whose blocks begin with their norms (Shoeybi et al. 2019, figure 7 (b)) is transformers' MegatronBert.
namespace megatron::interchange {

/// model_type of a MegatronBert.
inline constexpr const char* kMegatronBert = "megatron-bert";

/// Fills the network, the token types and the labels that the fields describe. Throws ConfigError for what none of
/// these has.
void read_bert(const nlohmann::json& object, JsonFields& fields, FolderConfig& folder);

/// Adds the fields of folder.model, whose family_of() is Bert. `pretrained`: the class of transformers that has the
/// parts of a model without the head of a task.
void write_bert(const FolderConfig& folder, const std::string& pretrained, nlohmann::json& object);

/// The classes of a model that tells texts apart, a BERT's or a GPT's: sets model.head, num_classes and the labels.
void read_classes(JsonFields& fields, FolderConfig& folder);

/// Adds the fields that read_classes() reads.
void write_classes(const FolderConfig& folder, nlohmann::json& object);

}  // namespace megatron::interchange
