#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/models/gpt/families/folders.h"

// Gemma, Gemma 2 and the text model of Gemma 3.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

constexpr std::int64_t kGemmaWindow = 4096;  // where config.json names none
constexpr double kLocalBase = 10000;

/// The model_type whose layers these are, or "" where no such folder can hold them.
std::string gemma_type(const ModelConfig& model) {
  const bool third = model.qk_layernorm;
  const std::string type = third ? "gemma3_text" : model.norm_position == "both" ? "gemma2" : "gemma";
  config::AttentionVariant attention{.qk_layernorm = third};
  config::LayerVariant layers{
      .norm_position = type == "gemma" ? "before" : "both", .apply_layernorm_1p = true, .scale_embeddings = true};
  if (type != "gemma") {
    attention.sliding_window = model.sliding_window;
    attention.window_attn_skip_freq = model.window_attn_skip_freq;
    attention.query_pre_attn_scalar = model.query_pre_attn_scalar;
    if (!third) attention.attn_logit_softcapping = model.attn_logit_softcapping;
    layers.final_logit_softcapping = model.final_logit_softcapping;
  }
  if (third) attention.rotary_base_local = model.rotary_base_local;
  // Its layers with a window are never stretched.
  const bool stretched = third && model.sliding_window > 0 && model.rope_scaling_factor != 1;
  if (stretched && model.rotary_base_local == 0) return "";
  return has_layers(model, attention, layers) && !model.add_bias_linear ? type : "";
}

std::string gemma_class(const std::string& type) {
  return type == "gemma" ? "Gemma" : type == "gemma2" ? "Gemma2" : "Gemma3";
}

/// The base of layers with a window.
double local_base(const json& object, JsonFields& fields) {
  double base = fields.number("rope_local_base_freq", kLocalBase);
  const json all = object.value("rope_parameters", json());
  if (const auto inner = all.find("sliding_attention"); all.is_object() && inner != all.end()) {
    if (!inner->is_object()) fields.refuse("rope_parameters", "an object of objects");
    JsonFields rope(*inner, fields.file(), "rope_parameters.sliding_attention.");
    base = rope.number("rope_theta", base);
    rope.must_be("rope_type", "default");
    rope.must_be("partial_rotary_factor", 1.0);
    rope.finish();
  }
  if (!(base > 0)) fields.refuse("rope_local_base_freq", "above 0");
  return base;
}

void read_gemma(const json& object, JsonFields& fields, FolderConfig& folder) {
  const std::string type = fields.text("model_type", "");
  check_architecture(
      object, fields,
      {gemma_class(type) + "ForCausalLM", gemma_class(type) + (type == "gemma3_text" ? "Text" : "") + "Model"});
  ModelConfig& model = folder.model;
  read_sizes(fields, model);
  if (model.kv_channels == 0) model.kv_channels = 256;
  const char* const activation = type == "gemma" ? "hidden_act" : "hidden_activation";
  read_gated(fields, model, activation);
  fields.ignore({"hidden_act", "hidden_activation"});  // folders have both, of which transformers reads one
  if (!fields.has(activation)) model.activation = "gelu_tanh";
  model.apply_layernorm_1p = model.scale_embeddings = true;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
  fields.must_be("attention_bias", false);
  fields.must_be("use_bidirectional_attention", false);
  const bool second = type == "gemma2", third = type == "gemma3_text";
  if (second || third) {
    model.norm_position = "both";
    model.query_pre_attn_scalar = fields.number("query_pre_attn_scalar", 256);
    if (!(model.query_pre_attn_scalar > 0)) fields.refuse("query_pre_attn_scalar", "above 0");
    if (third) fields.must_be("attn_logit_softcapping", nullptr);  // transformers has the field and never applies it
    model.attn_logit_softcapping =
        fields.number("attn_logit_softcapping", second && !object.contains("attn_logit_softcapping") ? 50 : 0);
    model.final_logit_softcapping =
        fields.number("final_logit_softcapping", second && !object.contains("final_logit_softcapping") ? 30 : 0);
    if (model.attn_logit_softcapping < 0) fields.refuse("attn_logit_softcapping", "above 0");
    if (model.final_logit_softcapping < 0) fields.refuse("final_logit_softcapping", "above 0");
    model.sliding_window = read_window(object, fields, kGemmaWindow);
    const std::int64_t pattern = fields.size("sliding_window_pattern", kMaxLayers,
                                             fields.size("_sliding_window_pattern", kMaxLayers, second ? 2 : 6));
    read_layer_types(fields, model, pattern);
    fields.ignore({"cache_implementation"});
  }
  model.qk_layernorm = third;
  read_rope(object, fields, model, {.base = third ? 1e6 : 1e4, .by_kind = third});
  if (third) {
    const double base = local_base(object, fields);
    if (model.sliding_window > 0) model.rotary_base_local = base;
  }
}

json whole_or_real(double x) { return x == std::floor(x) ? json(static_cast<std::int64_t>(x)) : json(x); }
json number_or_none(double x) { return x > 0 ? json(x) : json(); }

void write_gemma(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  const std::string type = gemma_type(model);
  const json rope = write_network(folder, object, type, gemma_class(type));
  object["hidden_activation"] = object["hidden_act"];
  if (type == "gemma") return;
  const double scalar =
      model.query_pre_attn_scalar > 0 ? model.query_pre_attn_scalar : static_cast<double>(shape_of(model).head());
  object.update({{"query_pre_attn_scalar", whole_or_real(scalar)},
                 {"attn_logit_softcapping", number_or_none(model.attn_logit_softcapping)},
                 {"final_logit_softcapping", number_or_none(model.final_logit_softcapping)},
                 {"sliding_window", model.sliding_window > 0 ? model.sliding_window : kGemmaWindow},
                 {"layer_types", layer_types(model)}});
  if (type == "gemma2") return;
  const double local = model.rotary_base_local > 0 ? model.rotary_base_local : model.rotary_base;
  object["rope_local_base_freq"] = local;
  object["rope_parameters"] = {{"full_attention", rope},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
}

LayerNames gemma_layer(const std::string& layer, const plan::LayerSpec& spec) {
  LayerNames names = llama_layer(layer);
  if (!spec.norms.behind) return names;
  names["self_attention.linear_proj.post_layernorm"] = {layer + "post_attention_layernorm"};
  names["pre_mlp_layernorm"] = {layer + "pre_feedforward_layernorm"};
  names["mlp.linear_fc2.post_layernorm"] = {layer + "post_feedforward_layernorm"};
  return names;
}

constexpr std::string_view kGemmaTypes[] = {"gemma", "gemma2", "gemma3_text"};

}  // namespace

extern const HfFamily kGemma;
constinit const HfFamily kGemma = decoder_family<gemma_layer>(
    {.name = "gemma",
     .form = "a Gemma (RMSNorm with apply_layernorm_1p, scale_embeddings, rope, gated_linear_unit, no biases)",
     .model_types = kGemmaTypes,
     .read = read_gemma,
     .holds =
         [](const ModelConfig& model, const ModelShape& shape) {
           return shape.rms_norm && shape.gated && rotates_halves(model) && !gemma_type(model).empty() &&
                  model.head == "tokens";
         },
     .write = write_gemma});

}  // namespace megatron::models::gpt
