#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megatron/families/hf_config.h"
#include "megatron/families/json_fields.h"

// The classes that a model tells apart, in the fields of config.json that all families have.
namespace megatron::families {

/// The names of classes 0, 1, …; transformers has two where a folder does not say.
std::vector<std::string> read_labels(JsonFields& fields);

/// The classes of a model that tells texts apart: sets model.head, num_classes and the labels.
void read_classes(JsonFields& fields, FolderConfig& folder);

/// Adds the fields that read_classes() reads.
void write_classes(const FolderConfig& folder, nlohmann::json& object);

}  // namespace megatron::families
