#include "megatron/interchange/megatron_lm/megatron_names.h"

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/families/json_fields.h"
#include "megatron/interchange/megatron_lm/arguments.h"
#include "megatron/interchange/megatron_lm/recipe.h"
#include "megatron/plan/layer.h"
#include "megatron/plan/rule_list.h"

namespace megatron::interchange {
namespace {

/// Options with which tensors of the same names mean something else.
void refuse_others(const Arguments& args) {
  for (const char* name : {"apply_residual_connection_post_layernorm", "retro_add_retriever"})
    if (args.flag(name)) args.refuse(name, "False, as the weights are read here", "True");
  if (args.flag("multi_latent_attention") && !args.flag("qk_layernorm"))
    args.refuse("qk_layernorm", "True with multi_latent_attention, whose latents are normalized here", "False");
  if (args.find("mtp_num_layers") != nullptr && args.flag("mtp_use_repeated_layer"))
    args.refuse("mtp_use_repeated_layer", "False, as the weights are read here", "True");
}

/// Layers before Megatron-Core's, and their arguments. Today's programs read neither of the two options.
void take_old_activation(const Arguments& args, config::ModelConfig& model) {
  const bool old = args.find("use_mcore_models") == nullptr && args.find("use_legacy_models") == nullptr;
  if (!old && !args.flag("use_legacy_models")) return;
  if (model.activation != "gelu" && model.activation != "gelu_tanh") return;
  if (args.flag("openai_gelu"))
    model.activation = "gelu_tanh";
  else if (args.flag("onnx_safe"))
    model.activation = "gelu";
}

void check_sizes(const config::ModelConfig& model, const Arguments& args) {
  struct Size {
    const char* name;
    std::int64_t value, least, most;
  };
  for (const auto& [name, value, least, most] :
       {Size{"num_layers", model.num_layers, 1, families::kMaxLayers},
        Size{"hidden_size", model.hidden_size, 1, families::kMaxWidth},
        Size{"num_attention_heads", model.num_attention_heads, 1, families::kMaxWidth},
        Size{"ffn_hidden_size", model.ffn_hidden_size, 1, families::kMaxWidth},
        Size{"kv_channels", model.kv_channels, model.multi_latent_attention ? 0 : 1, families::kMaxWidth},
        Size{"max_position_embeddings", model.max_position_embeddings, 1, families::kMaxPositions},
        Size{"num_query_groups", model.num_query_groups, args.flag("group_query_attention") ? 1 : 0,
             model.num_attention_heads},
        Size{"mtp_num_layers", model.mtp_num_layers, 0, families::kMaxLayers},
        Size{"num_experts", model.num_experts, 0, plan::kMaxExperts},
        Size{"moe_router_topk", model.moe_router_topk, 1, plan::kMaxExperts},
        Size{"moe_layer_freq", model.moe_layer_freq, 1, families::kMaxLayers},
        Size{"moe_ffn_hidden_size", model.moe_ffn_hidden_size, 0, families::kMaxWidth},
        Size{"moe_shared_expert_intermediate_size", model.moe_shared_expert_intermediate_size, 0, families::kMaxWidth},
        Size{"moe_router_num_groups", model.moe_router_num_groups, 0, plan::kMaxExperts},
        Size{"moe_router_group_topk", model.moe_router_group_topk, 0, plan::kMaxExperts},
        Size{"q_lora_rank", model.q_lora_rank, 0, families::kMaxWidth},
        Size{"kv_lora_rank", model.kv_lora_rank, 1, families::kMaxWidth},
        Size{"qk_head_dim", model.qk_head_dim, 1, plan::kMaxHeadOfLatents},
        Size{"qk_pos_emb_head_dim", model.qk_pos_emb_head_dim, 2, plan::kMaxHeadOfLatents},
        Size{"v_head_dim", model.v_head_dim, 1, plan::kMaxHeadOfLatents},
        Size{"make_vocab_size_divisible_by", model.make_vocab_size_divisible_by, 1, families::kMaxWidth}})
    if (value < least || value > most)
      args.refuse(name, concat("a whole number from ", least, " to ", most), concat(value));
}

std::string kind_of(const KindOfTensors& tensors) {
  if (!tensors.encoder) return config::ModelConfig().architecture;
  return config::kinds_with(tensors.decoder_layers == 0 ? &config::ModelTraits::two_segments
                                                        : &config::ModelTraits::encoder_decoder)
      .front();
}

void take_kind(const Arguments& args, const KindOfTensors& tensors, config::ModelConfig& model) {
  if (!tensors.encoder) return;
  if (model.num_experts > 0) args.refuse("num_experts", "None of a BERT or a T5", concat(model.num_experts));
  if (model.multi_latent_attention) args.refuse("multi_latent_attention", "False of a BERT or a T5", "True");
  if (tensors.decoder_layers == 0) {
    model.bert_binary_head = tensors.binary_head;
    model.num_tokentypes = tensors.token_types;
    return;
  }
  model.decoder_num_layers = tensors.decoder_layers;
  if (model.position_embedding_type != "learned_absolute")
    args.refuse("position_embedding_type", "learned_absolute of a T5", model.position_embedding_type);
  if (args.flag("group_query_attention")) args.refuse("group_query_attention", "False of a T5", "True");
  if (model.add_qkv_bias && !model.add_bias_linear)
    args.refuse("add_qkv_bias", "False of a T5 without biases of its linear layers", "True");
}

bool starts(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

using Renaming = std::pair<std::string_view, std::string_view>;

/// Within a layer: names of Megatron-Core's fused modules and of versions before it.
constexpr std::array<Renaming, 14> kInLayer = {{
    {"self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."},
    {"self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."},
    {"mlp.shared_experts.gate_weight", "mlp.shared_experts.gate.weight"},
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

/// Of an expert's linear layer in a module that has those of all: "mlp.experts.linear_fc1.weight3".
std::string of_expert(std::string_view rest) {
  constexpr std::string_view kGrouped = "mlp.experts.linear_fc";
  if (!starts(rest, kGrouped)) return std::string(rest);
  const std::size_t number = rest.find_last_not_of("0123456789") + 1, begin = kGrouped.rfind('.') + 1;
  return concat("mlp.experts.local_experts.", rest.substr(number), ".", rest.substr(begin, number - begin));
}

}  // namespace

config::ModelConfig model_of_arguments(const Pickle& values, const PickleNode& node, const KindOfTensors& tensors,
                                       const std::string& file) {
  const Arguments args(values, node, file);
  refuse_others(args);
  config::ModelConfig model = config::saved_recipe("pretrain_" + kind_of(tensors), saved_arguments(values, node, file),
                                                   file, config::SavedShare::Network)
                                  .model;
  take_old_activation(args, model);
  check_sizes(model, args);
  const std::int64_t padded_vocab = args.size("padded_vocab_size", families::kMaxVocab);
  model.vocab_size = args.size("vocab_size", padded_vocab, padded_vocab);
  take_kind(args, tensors, model);
  return model;
}

bool is_expert_bias(const std::string& ours) { return ours.ends_with(plan::Experts::kBias); }

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
    if (dot == std::string::npos) continue;
    const std::string_view rest = std::string_view(name).substr(dot + 1);
    if (rest == "mlp.experts.weight1" || rest == "mlp.experts.weight2")
      throw ConfigError(rule_got_fix(concat(file, ": files of ranks must have each expert's matrices."),
                                     concat("\"", printable(theirs.substr(0, 120)), "\", of all together"),
                                     "let Megatron-LM save the checkpoint in the format torch_dist"));
    // The router's biases of its experts are a buffer of the module there.
    return {name.substr(0, dot + 1) + of_expert(renamed(rest, kInLayer)), rest != plan::Experts::kBias};
  }
  for (const std::string_view known : kOutside)
    if (starts(name, known)) return {name};
  if (starts(name, "mtp."))
    throw ConfigError(rule_got_fix(concat(file, ": files of ranks are read without multi-token prediction."),
                                   concat("\"", printable(theirs.substr(0, 120)), "\""),
                                   "let Megatron-LM save the checkpoint in the format torch_dist, which keeps it"));
  throw ConfigError(rule_got_fix(concat(file, ": every tensor must belong to a GPT, a BERT or a T5."),
                                 concat("\"", printable(theirs.substr(0, 120)), "\""),
                                 "only checkpoints of these are read in this format"));
}

}  // namespace megatron::interchange
