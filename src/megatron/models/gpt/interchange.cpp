#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/interchange/hugging_face/hf_classes.h"
#include "megatron/interchange/hugging_face/hf_family.h"
#include "megatron/interchange/mapping_builder.h"

// GPTs as folders of Hugging Face: GPT-2, and Llama with those that are a Llama but for a detail.
namespace megatron::models::gpt {
namespace {

using namespace interchange;
using nlohmann::json;
using plan::ModelShape;

constexpr const char* kClassifier = "ForSequenceClassification";  // the end of a class's name

/// Hugging Face's name of an activation, ours; of several names for one function the first is written.
constexpr std::array<std::pair<const char*, const char*>, 8> kActivations = {{{"gelu", "gelu"},
                                                                              {"gelu_new", "gelu_tanh"},
                                                                              {"gelu_pytorch_tanh", "gelu_tanh"},
                                                                              {"gelu_fast", "gelu_tanh"},
                                                                              {"silu", "silu"},
                                                                              {"swish", "silu"},
                                                                              {"relu", "relu"},
                                                                              {"relu2", "squared_relu"}}};

std::string our_activation(JsonFields& fields, const std::string& key, const std::string& otherwise) {
  const std::string name = fields.text(key, otherwise);
  for (const auto& [theirs, ours] : kActivations)
    if (name == theirs) return ours;
  fields.refuse(key, "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu, swish, relu or relu2");
}

std::string their_activation(const std::string& name) {
  for (const auto& [theirs, ours] : kActivations)
    if (name == ours) return theirs;
  throw std::logic_error(concat("an activation without a name in config.json: ", name));
}

void check_architecture(const json& object, JsonFields& fields, const std::vector<std::string>& known) {
  const auto list = object.find("architectures");
  if (list == object.end() || list->is_null()) return;
  for (const std::string& name : known)
    if (*list == json::array({name})) return;
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "[\"" : "\"], [\"") + name;
  fields.refuse("architectures", names + "\"]");
}

/// The classes that a model tells apart, where its class of transformers does.
void read_head(const json& object, JsonFields& fields, FolderConfig& folder) {
  if (const json named = object.value("architectures", json()); named.is_array() && named.size() == 1)
    if (named[0].get<std::string>().ends_with(kClassifier)) read_classes(fields, folder);
}

void write_head(const FolderConfig& folder, json& object) {
  if (folder.model.head != "classes") return;
  write_classes(folder, object);
  // Padding is what transformers looks for to find the last token, which is the end of a text here.
  if (object["pad_token_id"] == object["eos_token_id"]) object["pad_token_id"] = nullptr;
}

void read_gpt2(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_architecture(object, fields, {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"});
  fields.ignore({"n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                 "summary_use_proj", "reorder_and_upcast_attn"});  // the last: where softmax is computed in float32
  fields.must_be("scale_attn_weights", true);
  fields.must_be("scale_attn_by_inverse_layer_idx", false);
  config::ModelConfig& model = folder.model;
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

/// "rope_type", or "type" as older folders say.
std::string rope_type(JsonFields& fields) { return fields.text("rope_type", fields.text("type", "default")); }

/// Base and scaling of the rotary positions: rope_parameters (transformers 5), or rope_theta and rope_scaling (4).
void read_rope(const json& object, JsonFields& fields, config::ModelConfig& model) {
  model.position_embedding_type = "rope";
  model.rotary_base = fields.number("rope_theta", 10000);
  const std::string key = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  fields.ignore({"rope_parameters", "rope_scaling"});
  fields.must_be("partial_rotary_factor", 1.0);
  fields.must_be("rope_interleaved", false);
  if (fields.has(key)) {
    const json& inner = object.at(key);
    if (!inner.is_object()) fields.refuse(key, "an object");
    JsonFields rope(inner, fields.file(), key + ".");
    model.rotary_base = rope.number("rope_theta", model.rotary_base);
    rope.must_be("partial_rotary_factor", 1.0);
    const std::string type = rope_type(rope);
    if (type == "llama3") {
      model.rope_scaling_factor = rope.number("factor", 0);
      model.rope_low_freq_factor = rope.number("low_freq_factor", 0);
      model.rope_high_freq_factor = rope.number("high_freq_factor", 0);
      model.rope_original_positions = rope.size("original_max_position_embeddings", kMaxPositions);
      if (!(model.rope_scaling_factor >= 1)) rope.refuse("factor", "at least 1");
      if (!(model.rope_low_freq_factor > 0)) rope.refuse("low_freq_factor", "above 0");
      if (!(model.rope_high_freq_factor > model.rope_low_freq_factor))
        rope.refuse("high_freq_factor", "above low_freq_factor");
    } else if (type != "default") {
      rope.refuse(rope.has("rope_type") ? "rope_type" : "type", "default or llama3");
    }
    rope.finish();
  }
  if (!(model.rotary_base > 0)) fields.refuse("rope_theta", "above 0");
}

constexpr std::int64_t kMistralWindow = 4096;  // where config.json of a Mistral names none

/// Fields of Mistral, Qwen2 and Qwen3 that make them more than a Llama.
void read_windows(const json& object, JsonFields& fields, const std::string& type, config::ModelConfig& model) {
  if (type == "mistral")
    model.sliding_window =
        fields.size("sliding_window", kMaxPositions, object.contains("sliding_window") ? 0 : kMistralWindow);
  if (type != "qwen2" && type != "qwen3") return;
  fields.must_be("use_sliding_window", false);
  fields.ignore({"sliding_window", "max_window_layers", "use_mrope"});  // without use_sliding_window nothing uses them
  fields.must_be("use_mrope", false);
  for (const json& layer : fields.value("layer_types").is_array() ? object.at("layer_types") : json::array())
    if (layer != "full_attention") fields.refuse("layer_types", "full_attention for every layer");
}

/// What the names of transformers' classes begin with.
std::string class_prefix(const std::string& type) {
  return type == "llama" ? "Llama" : type == "mistral" ? "Mistral" : type == "qwen2" ? "Qwen2" : "Qwen3";
}

void read_llama(const json& object, JsonFields& fields, FolderConfig& folder) {
  const std::string type = fields.text("model_type", "");
  const std::string name = class_prefix(type);
  check_architecture(object, fields, {name + "ForCausalLM", name + "Model", name + kClassifier});
  config::ModelConfig& model = folder.model;
  read_windows(object, fields, type, model);
  model.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  model.hidden_size = fields.size("hidden_size", kMaxWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMaxWidth);
  model.num_query_groups = fields.size("num_key_value_heads", kMaxWidth, model.num_attention_heads);
  model.kv_channels = fields.size("head_dim", kMaxWidth, 0);
  model.ffn_hidden_size = fields.size("intermediate_size", kMaxWidth);
  model.max_position_embeddings = fields.size("max_position_embeddings", kMaxPositions);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.normalization = "RMSNorm";
  model.layernorm_epsilon = fields.number("rms_norm_eps", 1e-6);
  model.activation = our_activation(fields, "hidden_act", "silu");
  model.gated_linear_unit = true;
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.hidden_dropout = 0;
  model.attention_dropout = fields.number("attention_dropout", 0);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  const bool attention_bias = fields.flag("attention_bias", false), mlp_bias = fields.flag("mlp_bias", false);
  if (attention_bias != mlp_bias) fields.refuse("attention_bias", "equal to mlp_bias");
  if (type != "llama" && attention_bias) fields.refuse("attention_bias", "false");
  model.add_bias_linear = attention_bias;
  model.add_qkv_bias = type == "qwen2";
  model.qk_layernorm = type == "qwen3";
  read_rope(object, fields, model);
  read_head(object, fields, folder);
}

void write_gpt2(const FolderConfig& folder, const HasTensor&, json& object) {
  const config::ModelConfig& model = folder.model;
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

/// The model_type whose layers these are, or "" where no such folder can hold them.
std::string llama_type(const config::ModelConfig& model) {
  if (model.sliding_window > 0)
    return model.qk_layernorm || model.add_qkv_bias || model.add_bias_linear ? "" : "mistral";
  if (model.qk_layernorm) return model.add_qkv_bias || model.add_bias_linear ? "" : "qwen3";
  return model.add_qkv_bias && !model.add_bias_linear ? "qwen2" : "llama";
}

void write_llama(const FolderConfig& folder, const HasTensor&, json& object) {
  const config::ModelConfig& model = folder.model;
  const plan::ModelShape shape = shape_of(model);
  const std::string type = llama_type(model);
  json rope = {{"rope_type", "default"}};
  object["rope_scaling"] = nullptr;
  if (model.rope_scaling_factor != 1) {
    rope = {{"rope_type", "llama3"},
            {"factor", model.rope_scaling_factor},
            {"low_freq_factor", model.rope_low_freq_factor},
            {"high_freq_factor", model.rope_high_freq_factor},
            {"original_max_position_embeddings", model.rope_original_positions}};
    object["rope_scaling"] = rope;
  }
  rope["rope_theta"] = model.rotary_base;
  object.update({{"model_type", type},
                 {"architectures", {class_prefix(type) + (model.head == "classes" ? kClassifier : "ForCausalLM")}},
                 {"hidden_act", their_activation(model.activation)},
                 {"num_hidden_layers", model.num_layers},
                 {"hidden_size", model.hidden_size},
                 {"num_attention_heads", model.num_attention_heads},
                 {"num_key_value_heads", shape.groups()},
                 {"head_dim", shape.head()},
                 {"intermediate_size", shape.ffn_hidden},
                 {"max_position_embeddings", model.max_position_embeddings},
                 {"rms_norm_eps", model.layernorm_epsilon},
                 {"attention_dropout", model.attention_dropout},
                 {"rope_theta", model.rotary_base},
                 {"rope_parameters", rope}});
  if (type == "qwen2" || type == "qwen3") object["use_sliding_window"] = false;
  if (type == "mistral") object["sliding_window"] = model.sliding_window;
  if (type == "llama") object.update({{"attention_bias", model.add_bias_linear}, {"mlp_bias", model.add_bias_linear}});
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

LayerNames llama_layer(const std::string& layer) {
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  return {{"input_layernorm", {layer + "input_layernorm"}},
          {"self_attention.linear_qkv", {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
          {"self_attention.q_layernorm", {attention + "q_norm"}},
          {"self_attention.k_layernorm", {attention + "k_norm"}},
          {"self_attention.linear_proj", {attention + "o_proj"}},
          {"pre_mlp_layernorm", {layer + "post_attention_layernorm"}},
          {"mlp.linear_fc1", {mlp + "gate_proj", mlp + "up_proj"}},
          {"mlp.linear_fc2", {mlp + "down_proj"}}};
}

/// What follows the last norm: the output layer, if it is not the embedding, or the classes of a task.
void gpt_head(MappingBuilder& build, const ModelShape& shape) {
  if (!shape.predicts_tokens())
    build.whole("task_head.weight", "score.weight", {shape.head_rows(), shape.hidden});
  else if (!shape.tied_output)
    build.whole("output_layer.weight", "lm_head.weight", {shape.vocab, shape.hidden});
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

/// Our names made of the tensors of a Llama, Mistral or Qwen2 folder: per group of heads its q rows, k, v; gate above
/// up. `prefix`: "model.", or "" for a model without its output layer.
Mapping llama_table(const ModelShape& shape, const std::string& prefix) {
  MappingBuilder build;
  build.whole("embedding.word_embeddings.weight", prefix + "embed_tokens.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    build.layer(shape.layer(layer), llama_layer(concat(prefix, "layers.", layer, ".")));
  build.norm("decoder.final_layernorm", prefix + "norm", shape);
  gpt_head(build, shape);
  return build.take();
}

bool ends_with_norms(const config::ModelConfig& model) { return model.apply_residual_connection_post_layernorm; }

constexpr std::string_view kGpt2Types[] = {"gpt2"}, kLlamaTypes[] = {"llama", "mistral", "qwen2", "qwen3"};

constexpr HfFamily kFamilies[] = {
    {.name = "gpt2",
     .architecture = "gpt",
     .models = "GPT-2",
     .form = "a GPT-2 (LayerNorm, learned_absolute positions, no gated_linear_unit, biases, one key and value head a "
             "head)",
     .model_types = kGpt2Types,
     .read = read_gpt2,
     .holds =
         [](const config::ModelConfig& model, const ModelShape& shape) {
           return model == config::AttentionVariant{} && !shape.rms_norm && !shape.gated && shape.linear_bias &&
                  shape.learned_positions && shape.groups() == shape.num_heads && shape.query_rows() == shape.hidden &&
                  !ends_with_norms(model);
         },
     .write = write_gpt2,
     .table =
         [](const ModelShape& shape, const HasTensor& theirs) {
           return gpt2_table(shape, theirs("transformer.wte.weight") ? "transformer." : "");
         },
     .written_table = [](const ModelShape& shape, const HasTensor&) { return gpt2_table(shape, "transformer."); },
     .needs_no_reading =
         [](const FolderConfig& folder, const std::string& name) {  // the causal mask
           return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || is_tied_head(folder, name);
         }},
    {.name = "llama",
     .architecture = "gpt",
     .models = "Llama, Mistral, Qwen2 without sliding windows, Qwen3",
     .form = "a Llama (RMSNorm, rope of whole heads, not interleaved, gated_linear_unit; without biases also "
             "qk_layernorm or a sliding_window)",
     .model_types = kLlamaTypes,
     .read = read_llama,
     .holds =
         [](const config::ModelConfig& model, const ModelShape& shape) {
           return shape.rms_norm && shape.gated && model.position_embedding_type == "rope" &&
                  model.rotary_percent == 1 && !model.rotary_interleaved && !llama_type(model).empty() &&
                  !ends_with_norms(model);
         },
     .write = write_llama,
     .table =
         [](const ModelShape& shape, const HasTensor& theirs) {
           return llama_table(shape, theirs("model.embed_tokens.weight") ? "model." : "");
         },
     .written_table = [](const ModelShape& shape, const HasTensor&) { return llama_table(shape, "model."); },
     .needs_no_reading =
         [](const FolderConfig& folder, const std::string& name) {
           return name.ends_with(".rotary_emb.inv_freq") || is_tied_head(folder, name);
         }}};

}  // namespace

extern const ModelFolders kFolders;
constinit const ModelFolders kFolders{.families = kFamilies};

}  // namespace megatron::models::gpt
