#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/experts_config.h"
#include "megatron/config/meaning.h"
#include "megatron/config/tables/model_kinds.h"
#include "megatron/config/tables/model_variants.h"
#include "megatron/config/tables/rotary_config.h"

// The options of run_config.h that describe the network.
namespace megatron::config {

struct ModelConfig : AttentionVariant,
                     LayerVariant,
                     ExpertsVariant,
                     LatentVariant,
                     MultiTokenVariant,
                     RotaryVariant,
                     InitialWeights {
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
  bool fp32_residual_connection = false;
  double layernorm_epsilon = 1e-5;
  std::string activation = "gelu_tanh";
  bool gated_linear_unit = false;
  bool add_bias_linear = true;
  std::string position_embedding_type = "learned_absolute";
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double rotary_base = 10000;
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
    v("masked_lm_bias", masked_lm_bias, "bert: give the dense layer before the output layer a bias.",
      when("model.architecture", kinds_with(&ModelTraits::two_segments)));
    v("head", head,
      "What follows the last layer: tokens is the output layer, the others are heads that `megatron finetune` trains.",
      Choices({"tokens", "classes", "options", "span"}));
    v("num_classes", num_classes, "Number of classes of head classes.", when("model.head", {"classes"}));
    v("normalization", normalization, "Normalization layer.", "normalization", Choices({"LayerNorm", "RMSNorm"}));
    v("norm_bias", norm_bias, "Give each LayerNorm a bias.", when("model.normalization", {"LayerNorm"}));
    v("embedding_layernorm", embedding_layernorm,
      "Normalize embeddings before the first layer, whose attention then has no norm of its own (ModernBERT).");
    v("apply_residual_connection_post_layernorm", apply_residual_connection_post_layernorm,
      "The residual connection begins after each norm: BERT's original order; else before it.",
      "apply-residual-connection-post-layernorm");
    v("fp32_residual_connection", fp32_residual_connection,
      "Keep the residual stream in float32 where train.dtype is bf16 or fp16: branches are added to it in float32, and "
      "messages between pipeline stages are float32.",
      "fp32-residual-connection", Affects::Step);
    v("norm_position", norm_position,
      "Where the norms of a layer are: before attention and MLP, behind them, before their sum with the stream "
      "(OLMo 2), or both (Gemma 2).",
      Choices({"before", "behind", "both"}));
    v("apply_layernorm_1p", apply_layernorm_1p, "Norms multiply by 1 + their weight, which begins at 0 (Gemma).",
      "apply-layernorm-1p");
    v("parallel_residual", parallel_residual,
      "Attention and MLP read the same stream, each behind a norm of its own, and both are added to it (GPT-NeoX).");
    v("parallel_shared_norm", parallel_shared_norm,
      "With parallel_residual: attention and MLP read one norm of the stream (Falcon 7B).",
      when("model.parallel_residual"));
    v("layernorm_epsilon", layernorm_epsilon, "Added to the variance (RMSNorm: mean square) in normalization.",
      "norm-epsilon");
    v("activation", activation,
      "Activation of the MLP; gelu_tanh is Megatron's fused bias-GELU, gelu the exact one, quick_gelu x sigmoid(1.702 "
      "x).",
      Choices({"gelu_tanh", "gelu", "silu", "relu", "squared_relu", "quick_gelu"}));
    v("gated_linear_unit", gated_linear_unit,
      "The MLP multiplies its activation by a second product: SwiGLU with silu (Megatron's --swiglu), GeGLU with "
      "gelu.");
    v("activation_func_clamp_value", activation_func_clamp_value,
      "Gated units: what is activated is at most this, what it is multiplied by within plus and minus this (GPT-OSS); "
      "0: no limits.",
      "activation-func-clamp-value", when("model.gated_linear_unit"));
    v("glu_linear_offset", glu_linear_offset, "Gated units: added to what the activation is multiplied by (GPT-OSS).",
      "glu-linear-offset", when("model.gated_linear_unit"));
    v("add_bias_linear", add_bias_linear, "Give linear layers a bias, with num_experts also routers and experts.");
    v("linear_bias_in", linear_bias_in, "The layers that add_bias_linear gives a bias.",
      Choices({"all", "attention", "mlp"}), when("model.add_bias_linear"));
    v("add_qkv_bias", add_qkv_bias, "A bias of queries, keys and values where the other layers have none.",
      "add-qkv-bias", unless("model.add_bias_linear"));
    v("qk_layernorm", qk_layernorm,
      "Normalize queries and keys, each head by itself, with a weight that the heads share (Qwen3).", "qk-layernorm");
    v("qk_layernorm_full", qk_layernorm_full,
      "With qk_layernorm: normalize all heads of the queries together, and all of the keys (OLMo 2).",
      when("model.qk_layernorm"));
    v("qk_l2_norm", qk_l2_norm,
      "Divide queries and keys, each head by itself, by their root mean square, without weights (Llama 4).",
      "qk-l2-norm");
    v("attention_output_gate", attention_output_gate,
      "Multiply what each head's attention gives by a sigmoid of as many more features that linear_qkv makes of each "
      "token (Qwen3-Next).",
      "attention-output-gate");
    v("sliding_window", sliding_window,
      "Tokens that each token sees, itself and those before it (Mistral), in an encoder as many behind it too; 0: all "
      "of them.");
    v("window_attn_skip_freq", window_attn_skip_freq,
      "Every so many layers one sees all tokens, the last of each group; 0: all layers have the window.",
      "window-attn-skip-freq", unless("model.sliding_window", {"0"}));
    v("window_attn_skip_first", window_attn_skip_first,
      "With window_attn_skip_freq: the first of each group sees all tokens (ModernBERT).",
      unless("model.window_attn_skip_freq", {"0"}));
    v("query_pre_attn_scalar", query_pre_attn_scalar,
      "Attention scores are divided by its root; 0: by that of the features per head.");
    v("attn_logit_softcapping", attn_logit_softcapping,
      "Attention scores x become c tanh(x / c), so that they stay below c (Gemma 2); 0: they do not.");
    v("softmax_type", softmax_type,
      "What attention's softmax sums besides the keys' exponentials: nothing, 1 (off-by-one), or that of a learned "
      "number of each head (attention sinks, GPT-OSS).",
      "softmax-type", Choices({"vanilla", "off-by-one", "learnable"}));
    v("final_logit_softcapping", final_logit_softcapping,
      "Logits x become c tanh(x / c), so that they stay below c (Gemma 2); 0: they do not.");
    v("scale_embeddings", scale_embeddings, "Multiply embeddings by the root of hidden_size (Gemma).");
    visit_experts(v);
    visit_latents(v);
    visit_multi_token(v);
    v("position_embedding_type", position_embedding_type,
      "Position embedding; rope is rotary, relative a bias of attention by distance (t5 only).",
      "position-embedding-type", Choices({"learned_absolute", "rope", "none", "relative"}));
    v("position_offset", position_offset,
      "learned_absolute: rows of the position embedding before that of the first position, which nothing reads "
      "(RoBERTa: 2).",
      when("model.position_embedding_type", {"learned_absolute"}));
    v("relative_attention_num_buckets", relative_attention_num_buckets,
      "relative: groups of distances that share a bias.", "relative-attention-num-buckets",
      when("model.position_embedding_type", {"relative"}));
    v("relative_attention_max_distance", relative_attention_max_distance,
      "relative: from here on all distances share the last.", "relative-attention-max-distance",
      when("model.position_embedding_type", {"relative"}));
    v("rotary_base", rotary_base, "rope: base of the wavelengths.", "rotary-base",
      when("model.position_embedding_type", {"rope"}));
    v("rotary_base_local", rotary_base_local,
      "rope: base of the layers with a window, whose wavelengths are never stretched (Gemma 3); 0: rotary_base.",
      when("model.position_embedding_type", {"rope"}), unless("model.sliding_window", {"0"}));
    v("no_rope_freq", no_rope_freq,
      "rope: every so many layers one has no positions, the last of each group (SmolLM3); 0: all have.", "no-rope-freq",
      when("model.position_embedding_type", {"rope"}));
    visit_rotary(v);
    visit_init(v);
    v("use_mup", use_mup,
      "Maximal update parametrization of a GPT (Yang et al. 2021): first weights, learning rates, attention and logits "
      "scale with the width, so that what was tuned at mup_base_hidden_size holds at any.",
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
