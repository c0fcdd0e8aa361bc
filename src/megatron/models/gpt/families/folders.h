#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/families/hf_family.h"
#include "megatron/families/mapping_builder.h"

// What the families of GPTs share: fields of config.json and names of tensors that many of them have.
namespace megatron::models::gpt {

constexpr const char* kClassifier = "ForSequenceClassification";  ///< the end of a class's name

/// Hugging Face's name of an activation <-> ours; of several names for one function the first is written.
std::string our_activation(families::JsonFields& fields, const std::string& key, const std::string& otherwise);
std::string their_activation(const std::string& name);

/// Refuses "architectures" that is another class than `known`.
void check_architecture(const nlohmann::json& object, families::JsonFields& fields,
                        const std::vector<std::string>& known);
/// The classes of transformers whose names begin so: a language model, its layers alone, a classifier.
void check_classes(const nlohmann::json& object, families::JsonFields& fields, const std::string& prefix);
/// "architectures" of a model to be written.
nlohmann::json class_of(const families::FolderConfig& folder, const std::string& prefix);

/// The classes that a model tells apart, where its class of transformers does.
void read_head(const nlohmann::json& object, families::JsonFields& fields, families::FolderConfig& folder);
void write_head(const families::FolderConfig& folder, nlohmann::json& object);

/// num_hidden_layers, hidden_size, … as all but GPT-2 call them; without the number of key and value heads where a
/// family has none of its own.
void read_sizes(families::JsonFields& fields, config::ModelConfig& model, bool grouped = true);
nlohmann::json sizes_json(const config::ModelConfig& model, bool grouped = true);

/// What a gated, RMS-normalized network has besides; `activation`: the field's name.
void read_gated(families::JsonFields& fields, config::ModelConfig& model, const char* activation = "hidden_act",
                double epsilon = 1e-6);

/// attention_bias and mlp_bias as options of the biases.
void set_biases(config::ModelConfig& model, bool attention, bool mlp);
bool attention_biased(const config::ModelConfig& model);
bool mlp_biased(const config::ModelConfig& model);

/// What a family's rotary positions are where config.json does not say, and whether a part of a head may be rotated.
struct RopeDefaults {
  double base = 10000, percent = 1;
  const char* theta = "rope_theta";  ///< the field of the base outside of these objects
  bool partial = false;
  bool mscales = false;  ///< YaRN's mscale and mscale_all_dim
  bool by_kind = false;  ///< rope_parameters has an object for each kind of layer
  /// Of a family whose positions are stretched by longrope alone: those of the model before; 0: any other stretch.
  std::int64_t longrope_positions = 0;
};
/// Base, scaling and share of the rotary positions: rope_theta and rope_scaling (transformers 4), or rope_parameters
/// (5), which a rope_scaling that is there too takes precedence over, as in transformers. A rope_parameters with an
/// object for each kind of layer has that of "full_attention" taken.
void read_rope(const nlohmann::json& object, families::JsonFields& fields, config::ModelConfig& model,
               const RopeDefaults& defaults = {});
/// As both write it; the object of rope_parameters.
nlohmann::json write_rope(const config::ModelConfig& model, nlohmann::json& object);
/// Rotary positions of halves of a head, of all its features where `whole`, not stretched by longrope.
bool rotates_halves(const config::ModelConfig& model, bool whole = true);

/// Which layers have the window, of "layer_types", or of how many one has none where there is no such list; refused
/// where they do not repeat, and where some have one and model.sliding_window is 0.
void read_layer_types(families::JsonFields& fields, config::ModelConfig& model, std::int64_t otherwise);
nlohmann::json layer_types(const config::ModelConfig& model);
/// Of how many elements one is `odd`, the last of each group; 0: none. Refused where they do not repeat so.
std::int64_t period_of(families::JsonFields& fields, const char* key, const nlohmann::json& list,
                       const nlohmann::json& odd, const nlohmann::json& other);

/// What config.json says of every family but GPT-2: sizes, model_type, class, activation, the norms' epsilon, which it
/// calls `epsilon`, and the rotary positions; those are returned as write_rope() does.
nlohmann::json write_network(const families::FolderConfig& folder, nlohmann::json& object, const std::string& type,
                             const std::string& class_prefix, const char* epsilon = "rms_norm_eps",
                             bool grouped = true);
/// Whether the layers are those of the family that has `attention` and `layers` besides what all layers have.
inline bool has_layers(const config::ModelConfig& model, const config::AttentionVariant& attention,
                       const config::LayerVariant& layers = {}) {
  return model == attention && model == layers && !model.apply_residual_connection_post_layernorm &&
         !model.multi_latent_attention && model.first_k_dense_replace == 0;
}
/// A window of sliding_window tokens, of `otherwise` where config.json names none; its null is none.
std::int64_t read_window(const nlohmann::json& object, families::JsonFields& fields, std::int64_t otherwise);
nlohmann::json window_or_null(const config::ModelConfig& model);
/// Refuses windows of Qwen's form, which are off unless use_sliding_window says otherwise.
void refuse_windows(const nlohmann::json& object, families::JsonFields& fields);

/// Names of Llama's tensors in a layer whose names begin with `layer`, for many families' to begin with.
families::LayerNames llama_layer(const std::string& layer);
/// Names of such a layer of GPT-NeoX and Falcon, whose attention and norms have different names.
families::LayerNames fused_heads_layer(const std::string& layer, const char* attention, const char* before_attention,
                                       const char* before_mlp);
/// Adds those of the `count` experts in `mlp`, "model.layers.0.mlp.", whose matrices are called so.
void name_experts(families::LayerNames& names, const std::string& mlp, std::int64_t count, const char* gate,
                  const char* up, const char* down);
/// What follows the last norm: the output layer, if it is not the embedding, or the classes of a task.
void gpt_head(families::MappingBuilder& build, const plan::ModelShape& shape,
              const std::string& output = "lm_head.weight");

using NamesOf = families::LayerNames (*)(const std::string& layer, const plan::LayerSpec& spec);
/// Our names made of the tensors of a folder whose names are Llama's but for those within layers: per group of heads
/// its q rows, k, v; gate above up. `prefix`: "model.", or "" for a model without its output layer.
families::Mapping decoder_table(const plan::ModelShape& shape, const std::string& prefix, NamesOf names);
bool needs_no_reading(const families::FolderConfig& folder, const std::string& name);

/// What a family has of its own whose tensors decoder_table() maps: the fields of HfFamily.
struct DecoderFamily {
  const char *name, *form;
  std::span<const std::string_view> model_types;
  decltype(families::HfFamily::read) read;
  decltype(families::HfFamily::holds) holds;
  decltype(families::HfFamily::write) write;
  bool experts = false;
  bool fuses_experts = false;
};
template <NamesOf names>
constexpr families::HfFamily decoder_family(const DecoderFamily& own) {
  using families::HasTensor;
  using plan::ModelShape;
  return {
      .name = own.name,
      .architecture = "gpt",
      .form = own.form,
      .model_types = own.model_types,
      .read = own.read,
      .holds = own.holds,
      .write = own.write,
      .table =
          [](const ModelShape& shape, const HasTensor& theirs) {
            return decoder_table(shape, theirs("model.embed_tokens.weight") ? "model." : "", names);
          },
      .written_table = [](const ModelShape& shape, const HasTensor&) { return decoder_table(shape, "model.", names); },
      .needs_no_reading = needs_no_reading,
      .experts = own.experts,
      .fuses_experts = own.fuses_experts};
}

}  // namespace megatron::models::gpt
