#include "megatron/interchange/megatron_lm/megatron_names.h"

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/interchange/hugging_face/json_fields.h"
#include "megatron/interchange/megatron_lm/arguments.h"

namespace megatron::interchange {
namespace {

/// Options of Megatron-LM that change what the weights compute and that this program does not have.
void refuse_others(const Arguments& args) {
  for (const char* name :
       {"apply_layernorm_1p", "multi_latent_attention", "qk_l2_norm", "apply_residual_connection_post_layernorm",
        "quick_geglu", "is_hybrid_model", "attention_output_gate", "retro_add_retriever"})
    if (args.flag(name)) args.refuse(name, "False, the only value computed here", "True");
  for (const char* name : {"num_experts", "mtp_num_layers", "window_size", "no_rope_freq", "spec",
                           "heterogeneous_layers_config_path", "hybrid_override_pattern"})
    if (args.find(name) != nullptr) args.refuse(name, "None, the only value computed here", "a value");
  if (args.number("rotary_seq_len_interpolation_factor", 1) != 1)
    args.refuse("rotary_seq_len_interpolation_factor", "None or 1", "another number");
}

std::string activation_of(const Arguments& args, bool has_bias) {
  if (args.flag("swiglu")) return "silu";
  if (args.flag("squared_relu")) return "squared_relu";
  if (args.flag("openai_gelu")) return "gelu_tanh";
  // Fused bias and GELU is the tanh form, the plain operator is the exact one.
  return has_bias && args.flag("bias_gelu_fusion", true) && !args.flag("onnx_safe") ? "gelu_tanh" : "gelu";
}

void read_positions(const Arguments& args, config::ModelConfig& model) {
  model.position_embedding_type =
      args.flag("use_rotary_position_embeddings") ? "rope" : args.text("position_embedding_type", "learned_absolute");
  if (const std::string& type = model.position_embedding_type;
      type != "rope" && type != "learned_absolute" && type != "none")
    args.refuse("position_embedding_type", "learned_absolute, rope or none", "another value");
  model.rotary_base = args.number("rotary_base", 10000);
  model.rotary_percent = args.number("rotary_percent", 1);
  model.rotary_interleaved = args.flag("rotary_interleaved");
  if (!args.flag("use_rope_scaling")) return;
  model.rope_scaling_factor = args.number("rope_scaling_factor", 8);
  model.rope_low_freq_factor = 1;  // constants of Megatron-Core's rotary_pos_embedding.py
  model.rope_high_freq_factor = 4;
  model.rope_original_positions = 8192;
}

bool starts(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

using Renaming = std::pair<std::string_view, std::string_view>;

/// Within a layer: names of Megatron-Core's fused modules and of versions before it.
constexpr std::array<Renaming, 11> kInLayer = {{
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."},
    {"input_norm.", "input_layernorm."},
    {"post_attention_layernorm.", "pre_mlp_layernorm."},
    {"post_attention_norm.", "pre_mlp_layernorm."},
    {"self_attention.query_key_value.", "self_attention.linear_qkv."},
    {"attention.query_key_value.", "self_attention.linear_qkv."},
    {"self_attention.dense.", "self_attention.linear_proj."},
    {"attention.dense.", "self_attention.linear_proj."},
    {"mlp.dense_h_to_4h.", "mlp.linear_fc1."},
    {"mlp.dense_4h_to_h.", "mlp.linear_fc2."},
}};

/// Outside of the layers.
constexpr std::array<Renaming, 6> kPrefixes = {{{"language_model.embedding.", "embedding."},
                                                {"language_model.encoder.", "decoder."},
                                                {"language_model.transformer.", "decoder."},
                                                {"language_model.output_layer.", "output_layer."},
                                                {"decoder.final_norm.", "decoder.final_layernorm."},
                                                {"module.", ""}}};

/// What is not within layers.
constexpr std::array<std::string_view, 10> kOutside = {"embedding.word_embeddings.weight",
                                                       "embedding.position_embeddings.weight",
                                                       "embedding.tokentype_embeddings.weight",
                                                       "decoder.final_layernorm.",
                                                       "encoder.final_layernorm.",
                                                       "lm_head.dense.",
                                                       "lm_head.layer_norm.",
                                                       "output_layer.bias",
                                                       "binary_head.",
                                                       "pooler.dense."};

std::string renamed(std::string_view text, std::span<const Renaming> table) {
  for (const auto& [theirs, ours] : table)
    if (starts(text, theirs)) return std::string(ours) + std::string(text.substr(theirs.size()));
  return std::string(text);
}

}  // namespace

config::ModelConfig model_of_arguments(const Pickle& values, const PickleNode& node, const std::string& file) {
  const Arguments args(values, node, file);
  refuse_others(args);
  config::ModelConfig model;
  model.num_layers = args.size("num_layers", kMaxLayers);
  model.hidden_size = args.size("hidden_size", kMaxWidth);
  model.num_attention_heads = args.size("num_attention_heads", kMaxWidth);
  model.ffn_hidden_size = args.size("ffn_hidden_size", kMaxWidth, 4 * model.hidden_size);
  model.max_position_embeddings = args.size("max_position_embeddings", kMaxPositions);
  const std::int64_t padded_vocab = args.size("padded_vocab_size", kMaxVocab);
  model.vocab_size = args.size("vocab_size", padded_vocab, padded_vocab);
  model.make_vocab_size_divisible_by = args.size("make_vocab_size_divisible_by", kMaxWidth, 128);
  model.untie_embeddings_and_output_weights = args.flag("untie_embeddings_and_output_weights");
  model.normalization = args.text("normalization", "LayerNorm");
  if (model.normalization != "LayerNorm" && model.normalization != "RMSNorm")
    args.refuse("normalization", "LayerNorm or RMSNorm", "another value");
  model.layernorm_epsilon = args.number("norm_epsilon", args.number("layernorm_epsilon", 1e-5));
  model.add_bias_linear = args.flag("add_bias_linear", true);
  model.add_qkv_bias = args.flag("add_qkv_bias");
  model.qk_layernorm = args.flag("qk_layernorm");
  model.gated_linear_unit = args.flag("swiglu");
  model.activation = activation_of(args, model.add_bias_linear);
  if (args.flag("group_query_attention"))
    model.num_query_groups = args.size("num_query_groups", model.num_attention_heads);
  model.kv_channels = args.size("kv_channels", kMaxWidth, 0);
  read_positions(args, model);
  model.init_method_std = args.number("init_method_std", 0.02);
  model.hidden_dropout = args.number("hidden_dropout", 0.1);
  model.attention_dropout = args.number("attention_dropout", 0.1);
  return model;
}

void take_kind(const Arguments& args, const KindOfTensors& tensors, config::ModelConfig& model) {
  if (!tensors.encoder) return;
  if (tensors.decoder_layers == 0) {
    model.architecture = config::kinds_with(&config::ModelTraits::two_segments).front();
    model.bert_binary_head = tensors.binary_head;
    model.num_tokentypes = tensors.token_types;
    return;
  }
  model.architecture = config::kinds_with(&config::ModelTraits::encoder_decoder).front();
  model.decoder_num_layers = tensors.decoder_layers;
  if (model.position_embedding_type != "learned_absolute")
    args.refuse("position_embedding_type", "learned_absolute of a T5", model.position_embedding_type);
  if (args.flag("group_query_attention")) args.refuse("group_query_attention", "False of a T5", "True");
  if (model.add_qkv_bias && !model.add_bias_linear)
    args.refuse("add_qkv_bias", "False of a T5 without biases of its linear layers", "True");
}

TheirName our_name(const std::string& theirs, bool tied_output, const std::string& file) {
  std::string name = theirs;
  for (int i = 0; i < 3; ++i) name = renamed(name, kPrefixes);
  const TheirName kNothing{"", false};
  if (name.ends_with("_extra_state") || name.ends_with(".inv_freq")) return kNothing;
  // A T5 registers these modules twice.
  if (starts(name, "position_embeddings.") || starts(name, "lm_head.output_layer.")) return kNothing;
  if (starts(name, "word_embeddings_for_head.") || starts(name, "word_embeddings.")) return {""};
  if (name == "output_layer.weight") return {tied_output ? "" : name};
  for (const std::string_view layers : {"decoder.layers.", "encoder.layers."}) {
    if (!starts(name, layers)) continue;
    const std::size_t dot = name.find('.', layers.size());
    if (dot != std::string::npos)
      return {name.substr(0, dot + 1) + renamed(std::string_view(name).substr(dot + 1), kInLayer)};
  }
  for (const std::string_view known : kOutside)
    if (starts(name, known)) return {name};
  throw ConfigError(rule_got_fix(concat(file, ": every tensor must belong to a GPT, a BERT or a T5."),
                                 concat("\"", printable(theirs.substr(0, 120)), "\""),
                                 "only checkpoints of these are read in this format"));
}

}  // namespace megatron::interchange
