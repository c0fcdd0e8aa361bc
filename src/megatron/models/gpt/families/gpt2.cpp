#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/models/gpt/families/folders.h"

// GPT-2 as a folder of Hugging Face.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

void read_gpt2(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_architecture(object, fields, {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"});
  fields.ignore({"n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                 "summary_use_proj", "reorder_and_upcast_attn"});  // the last: where softmax is computed in float32
  fields.must_be("scale_attn_weights", true);
  fields.must_be("scale_attn_by_inverse_layer_idx", false);
  ModelConfig& model = folder.model;
  model.num_layers = fields.size("n_layer", kMaxLayers);
  model.hidden_size = fields.size("n_embd", kMaxWidth);
  model.num_attention_heads = fields.size("n_head", kMaxWidth);
  model.ffn_hidden_size = fields.size("n_inner", kMaxWidth, 4 * model.hidden_size);
  model.max_position_embeddings = fields.size("n_positions", kMaxPositions);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.activation = our_activation(fields, "activation_function", "gelu_new");
  model.layernorm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.hidden_dropout = fields.number("resid_pdrop", 0.1);
  fields.ignore({"embd_pdrop"});  // one option here; it matters to training alone
  model.attention_dropout = fields.number("attn_pdrop", 0.1);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
  read_head(object, fields, folder);
}

void write_gpt2(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  object.update(
      {{"model_type", "gpt2"},
       {"architectures", {model.head == "classes" ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel"}},
       {"activation_function", model.activation == "gelu_tanh" ? "gelu_new" : their_activation(model.activation)},
       {"n_layer", model.num_layers},
       {"n_embd", model.hidden_size},
       {"n_head", model.num_attention_heads},
       {"n_inner", shape_of(model).ffn_hidden},
       {"n_positions", model.max_position_embeddings},
       {"layer_norm_epsilon", model.layernorm_epsilon},
       {"resid_pdrop", model.hidden_dropout},
       {"embd_pdrop", model.hidden_dropout},
       {"attn_pdrop", model.attention_dropout},
       {"scale_attn_weights", true},
       {"scale_attn_by_inverse_layer_idx", false}});
  write_head(folder, object);
}

LayerNames gpt2_layer(const std::string& layer) {
  return {{"input_layernorm", {layer + "ln_1"}},
          {"self_attention.linear_qkv", {layer + "attn.c_attn"}},
          {"self_attention.linear_proj", {layer + "attn.c_proj"}},
          {"pre_mlp_layernorm", {layer + "ln_2"}},
          {"mlp.linear_fc1", {layer + "mlp.c_fc"}},
          {"mlp.linear_fc2", {layer + "mlp.c_proj"}}};
}

/// Our names (Megatron-Core's) made of Hugging Face's GPT-2 tensors: Conv1D matrices transposed, the rows q, k, v of
/// linear_qkv interleaved per head. `prefix`: "transformer." as GPT2LMHeadModel writes, "" as GPT2Model does.
Mapping gpt2_table(const ModelShape& shape, const std::string& prefix) {
  MappingBuilder build(/*transposed=*/true);
  build.whole("embedding.word_embeddings.weight", prefix + "wte.weight", {shape.vocab, shape.hidden});
  build.whole("embedding.position_embeddings.weight", prefix + "wpe.weight", {shape.max_positions, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    build.layer(shape.layer(layer), gpt2_layer(concat(prefix, "h.", layer, ".")));
  build.norm("decoder.final_layernorm", prefix + "ln_f", shape);
  gpt_head(build, shape);
  return build.take();
}

constexpr std::string_view kGpt2Types[] = {"gpt2"};

}  // namespace

extern const HfFamily kGpt2;
constinit const HfFamily kGpt2{
    .name = "gpt2",
    .architecture = "gpt",
    .form =
        "a GPT-2 (LayerNorm, learned_absolute positions, no gated_linear_unit, biases, one key and value head a "
        "head)",
    .model_types = kGpt2Types,
    .read = read_gpt2,
    .holds =
        [](const config::ModelConfig& model, const ModelShape& shape) {
          return has_layers(model, {}) && !shape.rms_norm && !shape.gated && shape.linear_bias &&
                 shape.learned_positions && shape.groups() == shape.num_heads && shape.query_rows() == shape.hidden;
        },
    .write = write_gpt2,
    .table =
        [](const ModelShape& shape, const HasTensor& theirs) {
          return gpt2_table(shape, theirs("transformer.wte.weight") ? "transformer." : "");
        },
    .written_table = [](const ModelShape& shape, const HasTensor&) { return gpt2_table(shape, "transformer."); },
    .needs_no_reading = [](const FolderConfig& folder, const std::string& name) {  // the causal mask
      return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || is_tied_head(folder, name);
    }};

}  // namespace megatron::models::gpt
