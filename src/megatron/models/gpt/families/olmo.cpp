#include <nlohmann/json.hpp>

#include "megatron/models/gpt/families/folders.h"

// OLMo 2 and 3.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

constexpr std::int64_t kOlmoWindow = 4096, kOlmoPeriod = 4;  // where config.json of an OLMo 3 names none

/// The base of layers with a window, whose positions are never stretched; 0: that of all layers.
double local_base(const ModelConfig& model) {
  return model.sliding_window > 0 && model.rope_scaling_factor != 1 ? model.rotary_base : 0;
}

std::string olmo_type(const ModelConfig& model) {
  const config::AttentionVariant attention{.qk_layernorm = true,
                                           .qk_layernorm_full = true,
                                           .sliding_window = model.sliding_window,
                                           .window_attn_skip_freq = model.window_attn_skip_freq,
                                           .rotary_base_local = local_base(model)};
  const bool held = has_layers(model, attention, {.norm_position = "behind"}) && !model.add_bias_linear;
  return !held ? "" : model.sliding_window > 0 ? "olmo3" : "olmo2";
}

std::string olmo_class(const std::string& type) { return type == "olmo2" ? "Olmo2" : "Olmo3"; }

void read_olmo(const json& object, JsonFields& fields, FolderConfig& folder) {
  const std::string type = fields.text("model_type", "");
  check_classes(object, fields, olmo_class(type));
  ModelConfig& model = folder.model;
  read_sizes(fields, model);
  read_gated(fields, model, "hidden_act", 1e-5);
  fields.must_be("attention_bias", false);
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  model.norm_position = "behind";
  model.qk_layernorm = model.qk_layernorm_full = true;
  if (type == "olmo3") {
    model.sliding_window = read_window(object, fields, kOlmoWindow);
    read_layer_types(fields, model, kOlmoPeriod);
  }
  read_rope(object, fields, model);
  model.rotary_base_local = local_base(model);
  read_head(object, fields, folder);
}

void write_olmo(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  const std::string type = olmo_type(model);
  write_network(folder, object, type, olmo_class(type));
  object["attention_bias"] = false;
  if (type == "olmo3") object.update({{"sliding_window", model.sliding_window}, {"layer_types", layer_types(model)}});
  write_head(folder, object);
}

LayerNames olmo_layer(const std::string& layer, const plan::LayerSpec&) {
  LayerNames names = llama_layer(layer);
  names["self_attention.linear_proj.post_layernorm"] = {layer + "post_attention_layernorm"};
  names["mlp.linear_fc2.post_layernorm"] = {layer + "post_feedforward_layernorm"};
  return names;
}

constexpr std::string_view kOlmoTypes[] = {"olmo2", "olmo3"};

}  // namespace

extern const HfFamily kOlmo;
constinit const HfFamily kOlmo = decoder_family<olmo_layer>(
    {.name = "olmo2",
     .form = "an OLMo (RMSNorm with norm_position behind, qk_layernorm_full, rope, gated_linear_unit, no biases)",
     .model_types = kOlmoTypes,
     .read = read_olmo,
     .holds =
         [](const ModelConfig& model, const ModelShape& shape) {
           // Its heads have hidden_size / num_attention_heads features.
           return shape.rms_norm && shape.gated && rotates_halves(model) && !olmo_type(model).empty() &&
                  shape.query_rows() == shape.hidden;
         },
     .write = write_olmo});

}  // namespace megatron::models::gpt
