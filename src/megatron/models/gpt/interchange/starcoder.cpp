#include <nlohmann/json.hpp>

#include "megatron/models/gpt/interchange/folders.h"

// StarCoder2.
namespace megatron::models::gpt {
namespace {

using namespace interchange;
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
  object.update(sizes_json(model));
  object.update({{"model_type", "starcoder2"},
                 {"architectures", class_of(folder, "Starcoder2")},
                 {"hidden_act", their_activation(model.activation)},
                 {"norm_epsilon", model.layernorm_epsilon},
                 {"residual_dropout", model.hidden_dropout},
                 {"embedding_dropout", model.hidden_dropout},
                 {"use_bias", model.add_bias_linear},
                 {"sliding_window", model.sliding_window > 0 ? json(model.sliding_window) : json()}});
  write_rope(model, object);
  write_head(folder, object);
}

LayerNames starcoder_layer(const std::string& layer) {
  LayerNames names = llama_layer(layer);
  names["mlp.linear_fc1"] = {layer + "mlp.c_fc"};
  names["mlp.linear_fc2"] = {layer + "mlp.c_proj"};
  return names;
}

constexpr std::string_view kStarCoderTypes[] = {"starcoder2"};

}  // namespace

extern const HfFamily kStarCoder;
constinit const HfFamily kStarCoder{
    .name = "starcoder2",
    .architecture = "gpt",
    .models = "StarCoder2",
    .form = "a StarCoder2 (LayerNorm, rope of whole heads, not interleaved, no gated_linear_unit)",
    .model_types = kStarCoderTypes,
    .read = read_starcoder,
    .holds =
        [](const ModelConfig& model, const ModelShape& shape) {
          return model == config::AttentionVariant{.sliding_window = model.sliding_window} &&
                 model == config::LayerVariant{} && !shape.rms_norm && !shape.gated && rotates_halves(model) &&
                 !model.apply_residual_connection_post_layernorm;
        },
    .write = write_starcoder,
    .table = [](const ModelShape& shape,
                const HasTensor& theirs) { return decoder_table(shape, decoder_prefix(theirs), starcoder_layer); },
    .written_table = [](const ModelShape& shape,
                        const HasTensor&) { return decoder_table(shape, "model.", starcoder_layer); },
    .needs_no_reading = needs_no_reading};

}  // namespace megatron::models::gpt
