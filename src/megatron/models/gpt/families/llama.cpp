#include <nlohmann/json.hpp>

#include "megatron/models/gpt/families/folders.h"

// Llama, and those that are a Llama but for a detail.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

constexpr std::int64_t kMistralWindow = 4096;  // where config.json of a Mistral names none
constexpr std::int64_t kSmolPeriod = 4;        // of SmolLM3's layers so many one has no positions

/// Which layers of a SmolLM3 have positions.
void read_layers_without_positions(JsonFields& fields, ModelConfig& model) {
  model.no_rope_freq = fields.size("no_rope_layer_interval", kMaxLayers, kSmolPeriod);
  const json& list = fields.value("no_rope_layers");
  if (list.is_null()) return;
  if (!list.is_array() || list.size() < static_cast<std::size_t>(model.num_layers))
    fields.refuse("no_rope_layers", "a list with 1 for each layer that has positions and 0 for the others");
  const json layers(list.begin(), list.begin() + model.num_layers);
  const std::int64_t period = period_of(fields, "no_rope_layers", layers, 0, 1);
  if (period > 0 || model.no_rope_freq <= model.num_layers) model.no_rope_freq = period;  // else the list is too short
}

/// What the names of transformers' classes begin with.
std::string llama_class(const std::string& type) {
  return type == "llama"     ? "Llama"
         : type == "mistral" ? "Mistral"
         : type == "qwen2"   ? "Qwen2"
         : type == "qwen3"   ? "Qwen3"
                             : "SmolLM3";
}

void read_llama(const json& object, JsonFields& fields, FolderConfig& folder) {
  const std::string type = fields.text("model_type", "");
  check_classes(object, fields, llama_class(type));
  ModelConfig& model = folder.model;
  const bool smol = type == "smollm3";
  if (type == "mistral") model.sliding_window = read_window(object, fields, kMistralWindow);
  if (type == "qwen2" || type == "qwen3" || smol) refuse_windows(object, fields);
  read_sizes(fields, model);
  read_gated(fields, model);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", smol);
  set_biases(model, fields.flag("attention_bias", false), fields.flag("mlp_bias", false));
  if (type != "llama" && !smol && model.add_bias_linear)
    fields.refuse(attention_biased(model) ? "attention_bias" : "mlp_bias", "false");
  model.add_qkv_bias = type == "qwen2";
  model.qk_layernorm = type == "qwen3";
  if (smol) read_layers_without_positions(fields, model);
  read_rope(object, fields, model, {.base = smol ? 2e6 : 1e4});
  read_head(object, fields, folder);
}

/// The model_type whose layers these are, or "" where no such folder can hold them.
std::string llama_type(const ModelConfig& model) {
  const std::string type = model.sliding_window > 0                       ? "mistral"
                           : model.qk_layernorm                           ? "qwen3"
                           : model.no_rope_freq > 0                       ? "smollm3"
                           : model.add_qkv_bias && !model.add_bias_linear ? "qwen2"
                                                                          : "llama";
  if (model.add_bias_linear && type != "llama" && type != "smollm3") return "";
  const bool biased = model.add_bias_linear && model.linear_bias_in != "all";
  const config::AttentionVariant attention{
      .add_qkv_bias = type == "qwen2" || (model.add_bias_linear && !biased && model.add_qkv_bias),
      .qk_layernorm = type == "qwen3",
      .sliding_window = model.sliding_window,
      .no_rope_freq = type == "smollm3" ? model.no_rope_freq : 0};
  return has_layers(model, attention, {.linear_bias_in = model.linear_bias_in}) ? type : "";
}

void write_llama(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  const std::string type = llama_type(model);
  write_network(folder, object, type, llama_class(type));
  if (type == "qwen2" || type == "qwen3" || type == "smollm3") object["use_sliding_window"] = false;
  if (type == "mistral") object["sliding_window"] = model.sliding_window;
  if (type == "llama" || type == "smollm3")
    object.update({{"attention_bias", attention_biased(model)}, {"mlp_bias", mlp_biased(model)}});
  if (type == "smollm3") {
    const plan::ModelShape shape = shape_of(model);
    json layers = json::array();
    for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
      layers.push_back(shape.layer(layer).attention().rotary ? 1 : 0);
    object.update({{"no_rope_layers", layers},
                   {"no_rope_layer_interval", model.no_rope_freq},
                   {"layer_types", json(static_cast<std::size_t>(model.num_layers), "full_attention")}});
  }
  write_head(folder, object);
}

LayerNames plain_layer(const std::string& layer, const plan::LayerSpec&) { return llama_layer(layer); }

constexpr std::string_view kLlamaTypes[] = {"llama", "mistral", "qwen2", "qwen3", "smollm3"};

}  // namespace

extern const HfFamily kLlama;
constinit const HfFamily kLlama = decoder_family<plain_layer>(
    {.name = "llama",
     .form = "a Llama (RMSNorm, rope of whole heads, not interleaved, gated_linear_unit; without biases also "
             "qk_layernorm, a sliding_window or no_rope_freq)",
     .model_types = kLlamaTypes,
     .read = read_llama,
     .holds =
         [](const ModelConfig& model, const ModelShape& shape) {
           return shape.rms_norm && shape.gated && rotates_halves(model) && !llama_type(model).empty();
         },
     .write = write_llama});

}  // namespace megatron::models::gpt
