#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/models/gpt/families/folders.h"

// Falcon: attention and MLP in parallel behind one norm, with one key and value for all heads (7B); or its new decoder,
// with groups and a norm of each branch (40B) or one (11B).
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

constexpr std::int64_t kFalconPositions = 2048;  // where config.json names none

void read_falcon_layers(JsonFields& fields, ModelConfig& model) {
  model.parallel_residual = true;
  fields.must_be("parallel_attn", true);
  fields.must_be("alibi", false);
  const bool grouped = fields.flag("new_decoder_architecture", false);
  const bool one_key = fields.flag("multi_query", true);
  const std::int64_t keys = fields.size("num_kv_heads", kMaxWidth, model.num_attention_heads);
  model.num_query_groups = grouped ? keys : one_key ? 1 : model.num_attention_heads;
  const std::int64_t norms = fields.size("num_ln_in_parallel_attn", kMaxLayers, grouped ? 2 : 1);
  if (norms > (grouped ? 2 : 1))
    fields.refuse("num_ln_in_parallel_attn", grouped ? "1 or 2" : "1 without new_decoder_architecture");
  model.parallel_shared_norm = norms == 1;
}

void read_falcon(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_classes(object, fields, "Falcon");
  ModelConfig& model = folder.model;
  model.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  model.hidden_size = fields.size("hidden_size", kMaxWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMaxWidth);
  model.ffn_hidden_size = fields.size("ffn_hidden_size", kMaxWidth, std::min(4 * model.hidden_size, kMaxWidth));
  model.max_position_embeddings = fields.size("max_position_embeddings", kMaxPositions, kFalconPositions);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.layernorm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  // Theirs drops what attention and MLP give by one mask, and no probabilities.
  for (const char* dropout : {"hidden_dropout", "attention_dropout"}) fields.must_be(dropout, 0.0);
  model.attention_dropout = model.hidden_dropout = 0;
  model.activation = our_activation(fields, "activation", "gelu");
  read_falcon_layers(fields, model);
  fields.must_be("apply_residual_connection_post_layernorm", false);
  fields.ignore({"auto_map"});  // code beside the folder, which nothing runs
  const bool biased = fields.flag("bias", false);
  set_biases(model, biased, biased);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
  read_rope(object, fields, model);
  read_head(object, fields, folder);
}

/// Whether the layers are those of the new decoder.
bool has_new_decoder(const ModelConfig& model, const ModelShape& shape) {
  return !model.parallel_shared_norm || (shape.groups() != 1 && shape.groups() != shape.num_heads);
}

void write_falcon(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  const ModelShape shape = shape_of(model);
  const bool grouped = has_new_decoder(model, shape);
  object.update({{"model_type", "falcon"},
                 {"architectures", class_of(folder, "Falcon")},
                 {"num_hidden_layers", model.num_layers},
                 {"hidden_size", model.hidden_size},
                 {"num_attention_heads", model.num_attention_heads},
                 {"num_kv_heads", shape.groups()},
                 {"ffn_hidden_size", shape.ffn_hidden},
                 {"max_position_embeddings", model.max_position_embeddings},
                 {"layer_norm_epsilon", model.layernorm_epsilon},
                 {"hidden_dropout", 0.0},
                 {"attention_dropout", 0.0},
                 {"activation", their_activation(model.activation)},
                 {"bias", model.add_bias_linear},
                 {"alibi", false},
                 {"parallel_attn", true},
                 {"multi_query", !grouped && shape.groups() == 1},
                 {"new_decoder_architecture", grouped},
                 {"num_ln_in_parallel_attn", model.parallel_shared_norm ? 1 : 2}});
  write_rope(model, object);
  write_head(folder, object);
}

/// Our names made of theirs: the rows of query_key_value are group after group its queries, key and value, as ours are.
Mapping falcon_table(const ModelShape& shape, const std::string& prefix) {
  MappingBuilder build(/*transposed=*/false, /*by_groups=*/true);
  build.whole("embedding.word_embeddings.weight", prefix + "word_embeddings.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    build.layer(shape.layer(layer), fused_heads_layer(concat(prefix, "h.", layer, "."), "self_attention",
                                                      shape.shared_norm ? "input_layernorm" : "ln_attn", "ln_mlp"));
  build.norm("decoder.final_layernorm", prefix + "ln_f", shape);
  gpt_head(build, shape);
  return build.take();
}

constexpr std::string_view kFalconTypes[] = {"falcon"};

}  // namespace

extern const HfFamily kFalcon;
constinit const HfFamily kFalcon{
    .name = "falcon",
    .architecture = "gpt",
    .form = "a Falcon (LayerNorm, rope of whole heads, no gated_linear_unit, parallel_residual)",
    .model_types = kFalconTypes,
    .read = read_falcon,
    .holds =
        [](const ModelConfig& model, const ModelShape& shape) {
          const config::LayerVariant layers{.parallel_residual = true,
                                            .parallel_shared_norm = model.parallel_shared_norm};
          return has_layers(model, {}, layers) && !shape.rms_norm && !shape.gated && rotates_halves(model) &&
                 shape.query_rows() == shape.hidden;
        },
    .write = write_falcon,
    .table =
        [](const ModelShape& shape, const HasTensor& theirs) {
          return falcon_table(shape, theirs("transformer.word_embeddings.weight") ? "transformer." : "");
        },
    .written_table = [](const ModelShape& shape, const HasTensor&) { return falcon_table(shape, "transformer."); },
    .needs_no_reading = needs_no_reading};

}  // namespace megatron::models::gpt
