#include "megatron/interchange/hf_config.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/interchange/bert_config.h"
#include "megatron/interchange/json.h"
#include "megatron/interchange/json_fields.h"
#include "megatron/interchange/t5_config.h"
#include "megatron/plan/rules.h"

namespace megatron::interchange {
namespace {

/// What to do with a model that no such folder can hold.
constexpr const char* kKeepOurs = "leave it a checkpoint of this program: generate, eval and train --load read it";

using nlohmann::json;

constexpr std::int64_t kMaxLayersTimesGroups = 1 << 20;

constexpr const char* kDecoderStart = "decoder_start_token_id";
constexpr const char* kClassifier = "ForSequenceClassification";  // the end of a class's name
constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id", kDecoderStart};

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

/// What all families have and no result depends on; what must have one value.
void common_fields(JsonFields& fields, bool encoder_decoder) {
  fields.ignore({"_name_or_path",
                 "architectures",
                 "model_type",
                 "chunk_size_feed_forward",
                 "dtype",
                 "torch_dtype",
                 "id2label",
                 "label2id",
                 "output_attentions",
                 "output_hidden_states",
                 "output_past",
                 "problem_type",
                 "return_dict",
                 "transformers_version",
                 "use_cache",
                 "task_specific_params",
                 "gradient_checkpointing",
                 "torchscript",
                 "use_bfloat16",
                 "classifier_dropout",
                 "pretraining_tp",
                 "tokenizer_class",
                 "prefix",
                 "finetuning_task",
                 "transformers.js_config",
                 "_attn_implementation_autoset",
                 "attn_implementation",
                 "is_llama_config",
                 "unsloth_version",
                 "unsloth_fixed",
                 "sep_token_id"});
  // Defaults of text generation, which transformers 4 wrote here.
  fields.ignore({"bad_words_ids",
                 "begin_suppress_tokens",
                 "diversity_penalty",
                 "do_sample",
                 "early_stopping",
                 "encoder_no_repeat_ngram_size",
                 "exponential_decay_length_penalty",
                 "forced_bos_token_id",
                 "forced_eos_token_id",
                 "length_penalty",
                 "max_length",
                 "min_length",
                 "no_repeat_ngram_size",
                 "num_beam_groups",
                 "num_beams",
                 "num_return_sequences",
                 "output_scores",
                 "remove_invalid_values",
                 "repetition_penalty",
                 "return_dict_in_generate",
                 "suppress_tokens",
                 "temperature",
                 "top_k",
                 "top_p",
                 "typical_p",
                 "tf_legacy_loss"});
  fields.must_be("is_encoder_decoder", encoder_decoder);
  fields.must_be("add_cross_attention", false);
  fields.must_be("is_decoder", false);
  fields.must_be("pruned_heads", json::object());
  fields.must_be("cross_attention_hidden_size", nullptr);
  fields.must_be("tie_encoder_decoder", false);
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

config::ModelConfig gpt2_model(const json& object, JsonFields& fields) {
  check_architecture(object, fields, {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"});
  fields.ignore({"n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                 "summary_use_proj", "reorder_and_upcast_attn"});  // the last: where softmax is computed in float32
  fields.must_be("scale_attn_weights", true);
  fields.must_be("scale_attn_by_inverse_layer_idx", false);
  config::ModelConfig model;
  model.num_layers = fields.size("n_layer", kMostLayers);
  model.hidden_size = fields.size("n_embd", kMostWidth);
  model.num_attention_heads = fields.size("n_head", kMostWidth);
  model.ffn_hidden_size = fields.size("n_inner", kMostWidth, 4 * model.hidden_size);
  model.max_position_embeddings = fields.size("n_positions", kMostPositions);
  model.vocab_size = fields.size("vocab_size", kMostVocab);
  model.activation = our_activation(fields, "activation_function", "gelu_new");
  model.layernorm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.hidden_dropout = fields.number("resid_pdrop", 0.1);
  fields.ignore({"embd_pdrop"});  // one option here; it matters to training alone
  model.attention_dropout = fields.number("attn_pdrop", 0.1);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
  return model;
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
      model.rope_original_positions = rope.size("original_max_position_embeddings", kMostPositions);
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
        fields.size("sliding_window", kMostPositions, object.contains("sliding_window") ? 0 : kMistralWindow);
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

config::ModelConfig llama_model(const json& object, JsonFields& fields, const std::string& type) {
  const std::string name = class_prefix(type);
  check_architecture(object, fields, {name + "ForCausalLM", name + "Model", name + kClassifier});
  config::ModelConfig model;
  read_windows(object, fields, type, model);
  model.num_layers = fields.size("num_hidden_layers", kMostLayers);
  model.hidden_size = fields.size("hidden_size", kMostWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMostWidth);
  model.num_query_groups = fields.size("num_key_value_heads", kMostWidth, model.num_attention_heads);
  model.kv_channels = fields.size("head_dim", kMostWidth, 0);
  model.ffn_hidden_size = fields.size("intermediate_size", kMostWidth);
  model.max_position_embeddings = fields.size("max_position_embeddings", kMostPositions);
  model.vocab_size = fields.size("vocab_size", kMostVocab);
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
  return model;
}

json common_json(const FolderConfig& folder, const std::string& dtype) {
  json object = {{"dtype", dtype},
                 {"torch_dtype", dtype},
                 {"initializer_range", folder.model.init_method_std},
                 {"vocab_size", folder.model.vocab_size},
                 {"tie_word_embeddings", !folder.model.untie_embeddings_and_output_weights},
                 {"use_cache", true}};
  for (const char* key : kTokenIds) {
    if (key == kDecoderStart && folder.family != Family::T5) continue;
    const auto found = folder.token_ids.find(key);
    object[key] = found == folder.token_ids.end() ? json() : json::parse(found->second);
  }
  return object;
}

void write_gpt2(const config::ModelConfig& model, const plan::GptShape& shape, json& object) {
  object.update(
      {{"model_type", "gpt2"},
       {"architectures", {model.head == "classes" ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel"}},
       {"activation_function", model.activation == "gelu_tanh" ? "gelu_new" : their_activation(model.activation)},
       {"n_layer", model.num_layers},
       {"n_embd", model.hidden_size},
       {"n_head", model.num_attention_heads},
       {"n_inner", shape.ffn_hidden},
       {"n_positions", model.max_position_embeddings},
       {"layer_norm_epsilon", model.layernorm_epsilon},
       {"resid_pdrop", model.hidden_dropout},
       {"embd_pdrop", model.hidden_dropout},
       {"attn_pdrop", model.attention_dropout},
       {"scale_attn_weights", true},
       {"scale_attn_by_inverse_layer_idx", false}});
}

/// The model_type whose layers these are, or "" where no such folder can hold them.
std::string llama_type(const config::ModelConfig& model) {
  if (model.sliding_window > 0)
    return model.qk_layernorm || model.add_qkv_bias || model.add_bias_linear ? "" : "mistral";
  if (model.qk_layernorm) return model.add_qkv_bias || model.add_bias_linear ? "" : "qwen3";
  return model.add_qkv_bias && !model.add_bias_linear ? "qwen2" : "llama";
}

void write_llama(const config::ModelConfig& model, const plan::GptShape& shape, json& object) {
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
}

}  // namespace

FolderConfig parse_config(std::string_view text, const std::string& file) {
  const json object = parse_json_object(text, file);
  JsonFields fields(object, file);
  const std::string type = fields.text("model_type", "");
  FolderConfig folder;
  if (type == "gpt2") {
    folder.model = gpt2_model(object, fields);
  } else if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3") {
    folder.family = Family::Llama;
    folder.model = llama_model(object, fields, type);
  } else if (type == "bert" || type == kMegatronBert) {
    folder.family = Family::Bert;
    read_bert(object, fields, folder);
  } else if (type == "t5" || type == "mt5") {
    folder.family = Family::T5;
    folder.model = t5_model(object, fields);
  } else {
    fields.refuse("model_type", "gpt2, llama, mistral, qwen2, qwen3, bert, megatron-bert, t5 or mt5");
  }
  if (folder.family == Family::Gpt2 || folder.family == Family::Llama)
    if (const json named = object.value("architectures", json()); named.is_array() && named.size() == 1)
      if (named[0].get<std::string>().ends_with(kClassifier)) read_classes(fields, folder);
  folder.model.make_vocab_size_divisible_by = 1;
  for (const char* key : kTokenIds)
    if (const json& id = fields.value(key); !id.is_null()) folder.token_ids[key] = id.dump();
  common_fields(fields, folder.family == Family::T5);
  fields.finish();
  check_heads(folder.model, file);
  if (!(folder.model.layernorm_epsilon > 0))
    throw ConfigError(
        rule_got_fix(concat(file, ": the norms' epsilon must be above 0."), concat(folder.model.layernorm_epsilon)));
  return folder;
}

void check_heads(const config::ModelConfig& model, const std::string& file) {
  const std::int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  if (model.num_attention_heads % groups != 0)
    throw ConfigError(rule_got_fix(concat(file, ": the attention heads must be a multiple of the key and value heads."),
                                   concat(model.num_attention_heads, " and ", groups)));
  if (model.kv_channels == 0 && model.hidden_size % model.num_attention_heads != 0)
    throw ConfigError(rule_got_fix(concat(file, ": the hidden size must be a multiple of the attention heads."),
                                   concat(model.hidden_size, " and ", model.num_attention_heads)));
  if ((model.num_layers + model.decoder_num_layers) * groups > kMaxLayersTimesGroups)
    throw ConfigError(
        rule_got_fix(concat(file, ": layers times key and value heads must be at most ", kMaxLayersTimesGroups, "."),
                     concat(model.num_layers, " x ", groups)));
}

plan::GptShape shape_of(const config::ModelConfig& model) {
  config::ModelConfig unpadded = model;
  unpadded.make_vocab_size_divisible_by = 1;
  if (unpadded.ffn_hidden_size == 0) unpadded.ffn_hidden_size = 4 * model.hidden_size;
  plan::GptShape shape = plan::gpt_shape(unpadded, 1);
  // A folder has these beside the head of a task.
  shape.tied_output = !model.untie_embeddings_and_output_weights;
  shape.sentence_head = model.architecture == "bert" && model.bert_binary_head;
  return shape;
}

Family family_of(const config::ModelConfig& model) {
  if (model.head != "tokens" && model.head != "classes" && model.architecture != "bert")
    throw ConfigError(
        rule_got_fix("A GPT that is exported must have its output layer, or classes: transformers has no "
                     "other head for it.",
                     concat("model.head ", model.head), kKeepOurs));
  const plan::GptShape shape = shape_of(model);
  const bool first = !model.qk_layernorm && model.sliding_window == 0 && !shape.rms_norm && !shape.gated &&
                     shape.linear_bias && shape.learned_positions && shape.groups() == shape.num_heads &&
                     shape.query_rows() == shape.hidden;
  const bool llama = shape.rms_norm && shape.gated && model.position_embedding_type == "rope" &&
                     model.rotary_percent == 1 && !model.rotary_interleaved && !llama_type(model).empty();
  const bool after = model.apply_residual_connection_post_layernorm;
  if (shape.is_t5()) {
    if (can_be_t5(model) && !after) return Family::T5;
    throw ConfigError(rule_got_fix(
        "A Hugging Face folder can hold a T5 with RMSNorm, without biases, with one key and value head a head and the "
        "activation relu, gelu_tanh, gelu or silu, or gated gelu_tanh, silu or relu.",
        concat("normalization ", model.normalization, ", add_bias_linear ", model.add_bias_linear ? "true" : "false",
               ", num_query_groups ", shape.groups(), " of ", shape.num_heads, " heads, activation ", model.activation,
               ", gated_linear_unit ", model.gated_linear_unit ? "true" : "false"),
        kKeepOurs));
  }
  if (shape.is_bert()) {
    if (first && shape.tied_output && shape.token_types > 0 && model.activation == "gelu") return Family::Bert;
    throw ConfigError(rule_got_fix(
        "A Hugging Face folder can hold a BERT with LayerNorm, learned_absolute positions, token types, biases, the "
        "activation gelu, tied embeddings and one key and value head a head.",
        concat("normalization ", model.normalization, ", position_embedding_type ", model.position_embedding_type,
               ", num_tokentypes ", model.num_tokentypes, ", add_bias_linear ",
               model.add_bias_linear ? "true" : "false", ", activation ", model.activation),
        kKeepOurs));
  }
  if (first && !after) return Family::Gpt2;
  if (llama && !after) return Family::Llama;
  throw ConfigError(rule_got_fix(
      "A Hugging Face folder can hold a GPT-2 (LayerNorm, learned_absolute positions, no gated_linear_unit, biases, "
      "one key and value head a head) or a Llama (RMSNorm, rope of whole heads, not interleaved, gated_linear_unit; "
      "without biases also qk_layernorm or a sliding_window).",
      concat("normalization ", model.normalization, ", position_embedding_type ", model.position_embedding_type,
             ", rotary_percent ", model.rotary_percent, ", rotary_interleaved ", model.rotary_interleaved,
             ", gated_linear_unit ", model.gated_linear_unit, ", add_bias_linear ", model.add_bias_linear,
             ", qk_layernorm ", model.qk_layernorm, ", sliding_window ", model.sliding_window, ", num_query_groups ",
             shape.groups(), " of ", shape.num_heads, " heads of ", shape.head(),
             ", apply_residual_connection_post_layernorm ", after),
      kKeepOurs));
}

std::string config_json(const FolderConfig& folder, const std::string& dtype, const std::string& bert_architecture) {
  json object = common_json(folder, dtype);
  const plan::GptShape shape = shape_of(folder.model);
  if (folder.family == Family::Gpt2) write_gpt2(folder.model, shape, object);
  if (folder.family == Family::Llama) write_llama(folder.model, shape, object);
  if (folder.family == Family::T5) write_t5(folder.model, object);
  if (folder.family == Family::Bert) write_bert(folder, bert_architecture, object);
  if (folder.model.head == "classes" && folder.family != Family::Bert) {
    write_classes(folder, object);
    // Padding is what transformers looks for to find the last token, which is the end of a text here.
    if (object["pad_token_id"] == object["eos_token_id"]) object["pad_token_id"] = nullptr;
  }
  return object.dump(2) + "\n";
}

}  // namespace megatron::interchange
