#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/models/gpt/families/folders.h"

// GPT-NeoX and Pythia.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

config::LayerVariant neox_layers(const ModelConfig& model) {
  return {.parallel_residual = model.parallel_residual, .linear_bias_in = model.linear_bias_in};
}

void read_neox(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_classes(object, fields, "GPTNeoX");
  ModelConfig& model = folder.model;
  read_sizes(fields, model, /*grouped=*/false);
  model.layernorm_epsilon = fields.number("layer_norm_eps", 1e-5);
  model.activation = our_activation(fields, "hidden_act", "gelu");
  model.hidden_dropout = fields.number("hidden_dropout", 0);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  model.parallel_residual = fields.flag("use_parallel_residual", true);
  set_biases(model, fields.flag("attention_bias", true), /*mlp=*/true);
  const double percent = fields.number("rotary_pct", 0.25);
  read_rope(object, fields, model, {.percent = percent, .theta = "rotary_emb_base", .partial = true});
  read_head(object, fields, folder);
}

void write_neox(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  json rope = write_network(folder, object, "gpt_neox", "GPTNeoX", "layer_norm_eps", /*grouped=*/false);
  object.update({{"hidden_dropout", model.hidden_dropout},
                 {"use_parallel_residual", model.parallel_residual},
                 {"attention_bias", attention_biased(model)},
                 {"rotary_emb_base", model.rotary_base},
                 {"rotary_pct", model.rotary_percent}});
  rope["partial_rotary_factor"] = model.rotary_percent;
  object["rope_parameters"] = rope;
  write_head(folder, object);
}

/// Our names made of theirs: the rows of query_key_value are head after head its query, key and value, as ours are.
Mapping neox_table(const ModelShape& shape, const std::string& prefix) {
  MappingBuilder build(/*transposed=*/false, /*by_groups=*/true);
  build.whole("embedding.word_embeddings.weight", prefix + "embed_in.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    build.layer(shape.layer(layer), fused_heads_layer(concat(prefix, "layers.", layer, "."), "attention",
                                                      "input_layernorm", "post_attention_layernorm"));
  build.norm("decoder.final_layernorm", prefix + "final_layer_norm", shape);
  gpt_head(build, shape, "embed_out.weight");
  return build.take();
}

constexpr std::string_view kNeoXTypes[] = {"gpt_neox"};

}  // namespace

extern const HfFamily kNeoX;
constinit const HfFamily kNeoX{
    .name = "gpt_neox",
    .architecture = "gpt",
    .form = "a GPT-NeoX (LayerNorm, rope, not interleaved, no gated_linear_unit, biases, parallel_residual or not)",
    .model_types = kNeoXTypes,
    .read = read_neox,
    .holds =
        [](const ModelConfig& model, const ModelShape& shape) {
          return has_layers(model, {}, neox_layers(model)) && !shape.rms_norm && !shape.gated && mlp_biased(model) &&
                 rotates_halves(model, /*whole=*/false) && shape.groups() == shape.num_heads &&
                 shape.query_rows() == shape.hidden;
        },
    .write = write_neox,
    .table =
        [](const ModelShape& shape, const HasTensor& theirs) {
          return neox_table(shape, theirs("gpt_neox.embed_in.weight") ? "gpt_neox." : "");
        },
    .written_table = [](const ModelShape& shape, const HasTensor&) { return neox_table(shape, "gpt_neox."); },
    .needs_no_reading =
        [](const FolderConfig& folder, const std::string& name) {
          return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
                 name.ends_with(".rotary_emb.inv_freq") || is_tied_head(folder, name);
        },
    .head = "embed_out.weight"};

}  // namespace megatron::models::gpt
