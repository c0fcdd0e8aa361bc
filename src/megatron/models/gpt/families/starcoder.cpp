#include <nlohmann/json.hpp>

#include "megatron/models/gpt/families/folders.h"

// StarCoder2.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

void read_starcoder(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_classes(object, fields, "Starcoder2");
  ModelConfig& model = folder.model;
  read_sizes(fields, model);
  model.layernorm_epsilon = fields.number("norm_epsilon", 1e-5);
  fields.must_be("norm_type", "layer_norm");
  fields.must_be("mlp_type", "default");
  fields.ignore({"layer_norm_epsilon", "embedding_dropout"});  // no part of transformers' model reads the first
  model.activation = our_activation(fields, "hidden_act", "gelu_pytorch_tanh");
  model.hidden_dropout = fields.number("residual_dropout", 0);
  const bool biased = fields.flag("use_bias", true);
  set_biases(model, biased, biased);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
  model.sliding_window = fields.size("sliding_window", kMaxPositions, 0);
  read_rope(object, fields, model);
  read_head(object, fields, folder);
}

void write_starcoder(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  write_network(folder, object, "starcoder2", "Starcoder2", "norm_epsilon");
  object.update({{"residual_dropout", model.hidden_dropout},
                 {"embedding_dropout", model.hidden_dropout},
                 {"use_bias", model.add_bias_linear},
                 {"sliding_window", window_or_null(model)}});
  write_head(folder, object);
}

LayerNames starcoder_layer(const std::string& layer, const plan::LayerSpec&) {
  LayerNames names = llama_layer(layer);
  names["mlp.linear_fc1"] = {layer + "mlp.c_fc"};
  names["mlp.linear_fc2"] = {layer + "mlp.c_proj"};
  return names;
}

constexpr std::string_view kStarCoderTypes[] = {"starcoder2"};

}  // namespace

extern const HfFamily kStarCoder;
constinit const HfFamily kStarCoder = decoder_family<starcoder_layer>(
    {.name = "starcoder2",
     .form = "a StarCoder2 (LayerNorm, rope of whole heads, not interleaved, no gated_linear_unit)",
     .model_types = kStarCoderTypes,
     .read = read_starcoder,
     .holds =
         [](const ModelConfig& model, const ModelShape& shape) {
           return has_layers(model, {.sliding_window = model.sliding_window}) && !shape.rms_norm && !shape.gated &&
                  rotates_halves(model);
         },
     .write = write_starcoder});

}  // namespace megatron::models::gpt
