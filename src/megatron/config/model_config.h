#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/meaning.h"
#include "megatron/config/tables/model_kinds.h"

// The options of run_config.h that describe the network.
namespace megatron::config {

/// Options of attention that layers carry as one value (plan/layer.h): what reads them there finds a new one.
struct AttentionVariant {
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  std::int64_t sliding_window = 0;

  bool operator==(const AttentionVariant&) const = default;
};

struct ModelConfig : AttentionVariant {
  std::string architecture = model_kinds().front();
  std::int64_t num_layers = 4;
  std::int64_t decoder_num_layers = 0;
  std::int64_t hidden_size = 256;
  std::int64_t num_attention_heads = 4;
  std::int64_t num_query_groups = 0;
  std::int64_t kv_channels = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t vocab_size = 0;
  std::int64_t make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  std::int64_t num_tokentypes = 2;
  bool bert_binary_head = true;
  std::string head = "tokens";
  std::int64_t num_classes = 0;
  std::string normalization = "LayerNorm";
  bool apply_residual_connection_post_layernorm = false;
  double layernorm_epsilon = 1e-5;
  std::string activation = "gelu_tanh";
  bool gated_linear_unit = false;
  bool add_bias_linear = true;
  std::string position_embedding_type = "learned_absolute";
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double rotary_base = 10000;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  double rope_scaling_factor = 1;
  double rope_low_freq_factor = 1;
  double rope_high_freq_factor = 4;
  std::int64_t rope_original_positions = 8192;
  double init_method_std = 0.02;
  bool use_mup = false;
  std::int64_t mup_base_hidden_size = 0;
  double mup_embedding_mult = 1;
  double mup_output_mult = 1;
  double mup_base_head_dim = 0;
  double mup_attn_scale_power = 1;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;

  void visit(auto& v) {
    v("architecture", architecture,
      "gpt: a decoder that predicts the next token; bert: an encoder that fills in masked tokens and tells the order "
      "of two segments; t5: encoder and decoder with cross attention.",
      Choices(model_kinds()), Common());
    v("num_layers", num_layers, "Transformer layers; t5: of the encoder.", "num-layers", Common());
    v("decoder_num_layers", decoder_num_layers, "t5: layers of the decoder; 0: as many as the encoder's.",
      "decoder-num-layers");
    v("hidden_size", hidden_size, "Width of the residual stream.", "hidden-size", Common());
    v("num_attention_heads", num_attention_heads, "Attention heads; hidden_size must divide by them.",
      "num-attention-heads", Common());
    v("num_query_groups", num_query_groups,
      "Key and value heads, each shared by a group of query heads; 0: one per head.", "num-query-groups");
    v("kv_channels", kv_channels, "Features per head; 0: hidden_size / num_attention_heads.", "kv-channels");
    v("ffn_hidden_size", ffn_hidden_size, "Width of the MLP; 0: 4 x hidden_size, gated 2/3 of that in steps of 64.",
      "ffn-hidden-size");
    v("max_position_embeddings", max_position_embeddings, "Positions of a sequence; 0: data.seq_length.",
      "max-position-embeddings", SizesAlone());
    v("vocab_size", vocab_size, "Tokens of the vocabulary; 0: the tokenizer's.", "vocab-size");
    v("make_vocab_size_divisible_by", make_vocab_size_divisible_by,
      "Rows of the embedding are padded to a multiple of this; padding never takes part.",
      "make-vocab-size-divisible-by", Affects::Step);
    v("untie_embeddings_and_output_weights", untie_embeddings_and_output_weights,
      "Give the output layer a matrix of its own.", "untie-embeddings-and-output-weights");
    v("num_tokentypes", num_tokentypes, "bert: token types that have an embedding, one per segment; 0: none.",
      when("model.architecture", kinds_with(&ModelTraits::two_segments)));
    v("bert_binary_head", bert_binary_head,
      "bert: samples are two segments, and a head tells their order (Megatron's --bert-no-binary-head: neither).",
      when("model.architecture", kinds_with(&ModelTraits::two_segments)));
    v("head", head,
      "What follows the last layer: tokens is the output layer, the others are heads that `megatron finetune` trains.",
      Choices({"tokens", "classes", "options", "span"}));
    v("num_classes", num_classes, "Number of classes of head classes.", when("model.head", {"classes"}));
    v("normalization", normalization, "Normalization layer.", "normalization", Choices({"LayerNorm", "RMSNorm"}));
    v("apply_residual_connection_post_layernorm", apply_residual_connection_post_layernorm,
      "The residual connection begins after each norm: BERT's original order; else before it.",
      "apply-residual-connection-post-layernorm");
    v("layernorm_epsilon", layernorm_epsilon, "Added to the variance (RMSNorm: mean square) in normalization.",
      "norm-epsilon");
    v("activation", activation, "Activation of the MLP; gelu_tanh is Megatron's fused bias-GELU, gelu the exact one.",
      Choices({"gelu_tanh", "gelu", "silu", "relu", "squared_relu"}));
    v("gated_linear_unit", gated_linear_unit,
      "The MLP multiplies its activation by a second product: SwiGLU with silu (Megatron's --swiglu), GeGLU with "
      "gelu.");
    v("add_bias_linear", add_bias_linear, "Give linear layers a bias.");
    v("add_qkv_bias", add_qkv_bias, "A bias of queries, keys and values where the other layers have none.",
      "add-qkv-bias", unless("model.add_bias_linear"));
    v("qk_layernorm", qk_layernorm,
      "Normalize queries and keys, each head by itself, with a weight that the heads share (Qwen3).", "qk-layernorm");
    v("sliding_window", sliding_window,
      "Tokens that each token sees, itself and those before it (Mistral); 0: all of them.");
    v("position_embedding_type", position_embedding_type,
      "Position embedding; rope is rotary, relative a bias of attention by distance (t5 only).",
      "position-embedding-type", Choices({"learned_absolute", "rope", "none", "relative"}));
    v("relative_attention_num_buckets", relative_attention_num_buckets,
      "relative: groups of distances that share a bias.", "relative-attention-num-buckets",
      when("model.position_embedding_type", {"relative"}));
    v("relative_attention_max_distance", relative_attention_max_distance,
      "relative: from here on all distances share the last.", "relative-attention-max-distance",
      when("model.position_embedding_type", {"relative"}));
    v("rotary_base", rotary_base, "rope: base of the wavelengths.", "rotary-base",
      when("model.position_embedding_type", {"rope"}));
    v("rotary_percent", rotary_percent, "rope: share of a head's features that are rotated.", "rotary-percent",
      when("model.position_embedding_type", {"rope"}));
    v("rotary_interleaved", rotary_interleaved, "rope: rotate pairs of neighbours rather than of halves.",
      "rotary-interleaved");
    v("rope_scaling_factor", rope_scaling_factor, "rope: stretch of long wavelengths as in Llama 3; 1: none.",
      "rope-scaling-factor");
    v("rope_low_freq_factor", rope_low_freq_factor,
      "rope: wavelengths above rope_original_positions / this are stretched in full.",
      when("model.position_embedding_type", {"rope"}), unless("model.rope_scaling_factor", {"1"}));
    v("rope_high_freq_factor", rope_high_freq_factor,
      "rope: wavelengths below rope_original_positions / this are not stretched.",
      when("model.position_embedding_type", {"rope"}), unless("model.rope_scaling_factor", {"1"}));
    v("rope_original_positions", rope_original_positions, "rope: positions of the model before the stretch.",
      when("model.position_embedding_type", {"rope"}), unless("model.rope_scaling_factor", {"1"}));
    v("init_method_std", init_method_std, "Standard deviation of initial weights; output layers: / sqrt(2 num_layers).",
      "init-method-std", Affects::Step);
    v("use_mup", use_mup,
      "Maximal update parametrization of a GPT (Yang et al. 2021): first weights, learning rates, attention and logits "
      "scale "
      "with the width, so that what was tuned at mup_base_hidden_size holds at any.",
      "use-mup", when("model.architecture", kinds_with(&ModelTraits::causal)));
    v("mup_base_hidden_size", mup_base_hidden_size, "Width at which nothing is scaled; 0: hidden_size.",
      "mup-base-hidden-size", when("model.use_mup"));
    v("mup_embedding_mult", mup_embedding_mult, "Multiplies the embeddings.", "mup-embedding-mult",
      when("model.use_mup"));
    v("mup_output_mult", mup_output_mult, "Multiplies the logits; 1: mup_base_hidden_size / hidden_size.",
      "mup-output-mult", when("model.use_mup"));
    v("mup_base_head_dim", mup_base_head_dim,
      "Features per head at which attention is scaled by their root as usual; 0: 1.", "mup-base-head-dim",
      when("model.use_mup"));
    v("mup_attn_scale_power", mup_attn_scale_power,
      "Attention scores are multiplied by sqrt(mup_base_head_dim) / kv_channels to this power.", "mup-attn-scale-power",
      when("model.use_mup"));
    v("hidden_dropout", hidden_dropout, "Dropout of embeddings and residual branches.", "hidden-dropout",
      Affects::Step);
    v("attention_dropout", attention_dropout, "Dropout of attention probabilities.", "attention-dropout",
      Affects::Step);
  }
};

}  // namespace megatron::config
