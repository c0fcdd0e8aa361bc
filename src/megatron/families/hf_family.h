#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "megatron/families/hf_config.h"
#include "megatron/families/json_fields.h"
#include "megatron/families/mapping.h"

// The families of Hugging Face's models, one row each, in models/NAME/families.cpp of the kind that they are.
namespace megatron::families {

/// Whether weights have a tensor of that name.
using HasTensor = std::function<bool(const std::string& name)>;

/// A tensor of a folder that must hold what another does: `ours` is that one's name here.
struct SecondName {
  std::string_view theirs;
  const char* ours;
};

/// Models of transformers that share the form of config.json and the names of their tensors.
struct HfFamily {
  const char* name;                               ///< "llama": of families.def, which has its models for people
  const char* architecture;                       ///< model.architecture
  const char* form;                               ///< what a folder of it can hold, for messages: "a Llama (…)"
  std::span<const std::string_view> model_types;  ///< model_type in config.json
  /// Fills the network and the labels that the fields describe. Throws ConfigError for what none of these has.
  void (*read)(const nlohmann::json& object, JsonFields& fields, FolderConfig& folder);
  /// Whether a folder of it can say what `model` is, whose architecture is this.
  bool (*holds)(const config::ModelConfig& model, const plan::ModelShape& shape);
  /// Adds the fields of folder.model, which it holds(). `theirs`: of the tensors that are written beside it.
  void (*write)(const FolderConfig& folder, const HasTensor& theirs, nlohmann::json& object);
  /// Our names made of theirs, of a folder whose tensors are `theirs`.
  Mapping (*table)(const plan::ModelShape& shape, const HasTensor& theirs);
  /// table() for a folder that is to be written of weights whose tensors are `ours`.
  Mapping (*written_table)(const plan::ModelShape& shape, const HasTensor& ours);
  /// Tensors that folders hold besides the weights: constants, and second names of tied matrices.
  bool (*needs_no_reading)(const FolderConfig& folder, const std::string& name);
  /// The output layer's matrix of an untied model. A tied one may have it too, which must then be its embedding.
  const char* head = "lm_head.weight";
  /// Further second names, and what ours they are of, whatever config.json says of ties.
  std::span<const SecondName> second_names = {};
  /// Tensors of a folder that is to be written, made of ours, that hold what others hold too. Null: there are none.
  Mapping (*copies)(const plan::ModelShape& shape) = nullptr;
  bool experts = false;  ///< its layers are mixtures of experts; of others no layer is
  /// Folders hold the experts of a layer in one tensor, which no table of slices maps: its table is of the folder as
  /// interchange/hugging_face/fused_experts.h takes it apart.
  bool fuses_experts = false;
};

/// What folders must know of a kind of model.
struct ModelFolders {
  std::span<const HfFamily* const> families;
};

/// The rows of all kinds.
std::span<const HfFamily* const> hf_families();

/// The row of that name. Precondition: there is one.
const HfFamily& hf_family(std::string_view name);

/// The family whose folder can hold `model`. Throws ConfigError naming the options that none of them has.
const HfFamily& family_of(const config::ModelConfig& model);

/// family_of(); null where no family holds it.
const HfFamily* find_family(const config::ModelConfig& model);

/// Whether `name` is the output layer's second name for the word embedding.
bool is_tied_head(const FolderConfig& folder, const std::string& name);

/// Our name of the tensor that `name`, which needs no reading, must hold a second time; null: there is none.
const char* second_name_of(const FolderConfig& folder, const std::string& name);

}  // namespace megatron::families
