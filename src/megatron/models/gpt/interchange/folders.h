#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/interchange/hugging_face/hf_family.h"
#include "megatron/interchange/mapping_builder.h"

// What the families of GPTs share: fields of config.json and names of tensors that many of them have.
namespace megatron::models::gpt {

constexpr const char* kClassifier = "ForSequenceClassification";  ///< the end of a class's name

/// Hugging Face's name of an activation <-> ours; of several names for one function the first is written.
std::string our_activation(interchange::JsonFields& fields, const std::string& key, const std::string& otherwise);
std::string their_activation(const std::string& name);

/// Refuses "architectures" that is another class than `known`.
void check_architecture(const nlohmann::json& object, interchange::JsonFields& fields,
                        const std::vector<std::string>& known);
/// The classes of transformers whose names begin so: a language model, its layers alone, a classifier.
void check_classes(const nlohmann::json& object, interchange::JsonFields& fields, const std::string& prefix);
/// "architectures" of a model to be written.
nlohmann::json class_of(const interchange::FolderConfig& folder, const std::string& prefix);

/// The classes that a model tells apart, where its class of transformers does.
void read_head(const nlohmann::json& object, interchange::JsonFields& fields, interchange::FolderConfig& folder);
void write_head(const interchange::FolderConfig& folder, nlohmann::json& object);

/// num_hidden_layers, hidden_size, … as all but GPT-2 call them; without the number of key and value heads where a
/// family has none of its own.
void read_sizes(interchange::JsonFields& fields, config::ModelConfig& model, bool grouped = true);
nlohmann::json sizes_json(const config::ModelConfig& model, bool grouped = true);

/// What a gated, RMS-normalized network has besides; `activation`: the field's name.
void read_gated(interchange::JsonFields& fields, config::ModelConfig& model, const char* activation = "hidden_act",
                double epsilon = 1e-6);

/// attention_bias and mlp_bias as options of the biases.
void set_biases(config::ModelConfig& model, bool attention, bool mlp);
bool attention_biased(const config::ModelConfig& model);
bool mlp_biased(const config::ModelConfig& model);

/// What a family's rotary positions are where config.json does not say, and whether a part of a head may be rotated.
struct RopeDefaults {
  double base = 10000, percent = 1;
  bool partial = false;
};
/// Base, scaling and share of the rotary positions: rope_parameters (transformers 5), or rope_theta and rope_scaling
/// (4). A rope_parameters with an object for each kind of layer has that of "full_attention" taken.
void read_rope(const nlohmann::json& object, interchange::JsonFields& fields, config::ModelConfig& model,
               const RopeDefaults& defaults = {});
/// As both write it; the object of rope_parameters.
nlohmann::json write_rope(const config::ModelConfig& model, nlohmann::json& object);
/// Rotary positions of halves of a head, of all its features where `whole`.
bool rotates_halves(const config::ModelConfig& model, bool whole = true);

/// Which layers have the window, of "layer_types", or of how many one has none where there is no such list; refused
/// where they do not repeat.
void read_layer_types(interchange::JsonFields& fields, config::ModelConfig& model, std::int64_t otherwise);
nlohmann::json layer_types(const config::ModelConfig& model);
/// Of how many elements one is `odd`, the last of each group; 0: none. Refused where they do not repeat so.
std::int64_t period_of(interchange::JsonFields& fields, const char* key, const nlohmann::json& list,
                       const nlohmann::json& odd, const nlohmann::json& other);

/// Names of Llama's tensors.
interchange::LayerNames llama_layer(const std::string& layer);
/// What follows the last norm: the output layer, if it is not the embedding, or the classes of a task.
void gpt_head(interchange::MappingBuilder& build, const plan::ModelShape& shape,
              const std::string& output = "lm_head.weight");

using NamesOf = interchange::LayerNames (*)(const std::string& layer);
/// Our names made of the tensors of a folder whose names are Llama's but for those within layers: per group of heads
/// its q rows, k, v; gate above up. `prefix`: "model.", or "" for a model without its output layer.
interchange::Mapping decoder_table(const plan::ModelShape& shape, const std::string& prefix, NamesOf names);
/// Of a folder whose tensors are `theirs`, or that is to be written.
inline std::string decoder_prefix(const interchange::HasTensor& theirs) {
  return theirs("model.embed_tokens.weight") ? "model." : "";
}
bool needs_no_reading(const interchange::FolderConfig& folder, const std::string& name);

}  // namespace megatron::models::gpt
