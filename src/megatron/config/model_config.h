#pragma once
#include <cstdint>
#include <string>

// The options of run_config.h that describe the network.
namespace megatron::config {

struct ModelConfig {
  std::int64_t num_layers = 4;
  std::int64_t hidden_size = 256;
  std::int64_t num_attention_heads = 4;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t vocab_size = 0;
  std::int64_t make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  double layernorm_epsilon = 1e-5;
  std::string gelu = "tanh";
  double init_method_std = 0.02;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;

  void visit(auto& v) {
    v("num_layers", num_layers, "Transformer layers.", "num-layers");
    v("hidden_size", hidden_size, "Width of the residual stream.", "hidden-size");
    v("num_attention_heads", num_attention_heads, "Attention heads; hidden_size must divide by them.",
      "num-attention-heads");
    v("ffn_hidden_size", ffn_hidden_size, "Width of the MLP; 0: 4 x hidden_size.", "ffn-hidden-size");
    v("max_position_embeddings", max_position_embeddings, "Learned positions; 0: data.seq_length.",
      "max-position-embeddings");
    v("vocab_size", vocab_size, "Tokens of the vocabulary; 0: the tokenizer's.", "vocab-size");
    v("make_vocab_size_divisible_by", make_vocab_size_divisible_by,
      "Rows of the embedding are padded to a multiple of this; padding never takes part.",
      "make-vocab-size-divisible-by");
    v("untie_embeddings_and_output_weights", untie_embeddings_and_output_weights,
      "Give the output layer a matrix of its own.", "untie-embeddings-and-output-weights");
    v("layernorm_epsilon", layernorm_epsilon, "Added to the variance in layer normalization.", "norm-epsilon");
    v("gelu", gelu, "tanh (Megatron's fused bias-GELU) or erf (exact).");
    v("init_method_std", init_method_std, "Standard deviation of initial weights; output layers: / sqrt(2 num_layers).",
      "init-method-std");
    v("hidden_dropout", hidden_dropout, "Dropout of embeddings and residual branches.", "hidden-dropout");
    v("attention_dropout", attention_dropout, "Dropout of attention probabilities.", "attention-dropout");
  }
};

}  // namespace megatron::config
