#pragma once
#include <cstdint>

#include "megatron/config/run_config.h"
#include "megatron/plan/parameters/parameters.h"

// How much there is to hold and to compute.
namespace megatron::plan {

/// Elements of all parameters of the whole model, rows that pad the vocabulary included.
std::int64_t parameter_count(const ModelShape& shape);

/// Floating-point operations of forward and backward over `sequences` sequences of `seq_length` tokens, as Megatron-LM
/// counts them: a multiply-add is two, backward is twice forward, causal attention counts half of its square (a BERT's
/// all of it), and the output layer counts its padded rows, of a BERT for every token and with the matrix before it.
/// What is computed again in backward does not count, nor that ranks which share a key and value head compute both.
/// `decoder_length`: of a T5, whose encoder's is seq_length; what its decoder sees of the encoder counts with it.
double training_flops(const ModelShape& shape, std::int64_t sequences, std::int64_t seq_length,
                      std::int64_t decoder_length = 0);

/// What a layer computes on.
struct LayerTokens {
  std::int64_t sequences = 0, length = 0;
  std::int64_t encoder_length = 0;  ///< of cross attention
};
/// Of a layer of a model whose sequences have `seq_length` tokens, and `decoder_length` in the decoder of a T5.
LayerTokens tokens_of(const LayerSpec& layer, std::int64_t sequences, std::int64_t seq_length,
                      std::int64_t decoder_length);

/// Floating-point operations of a layer's forward pass, counted as training_flops() does.
struct LayerFlops {
  double matrices = 0;   ///< products with weights
  double fc1 = 0;        ///< the part of these that is the first product of MLPs
  double attention = 0;  ///< products of activations
};
LayerFlops layer_flops(const LayerSpec& layer, const LayerTokens& tokens);
/// Operations of a depth of multi-token prediction: its projection and its layer.
LayerFlops depth_flops(const PredictionDepth& depth, const LayerTokens& tokens);
/// Of the output layer, once; the head of a task counts as none.
double output_flops(const ModelShape& shape, std::int64_t tokens);

/// Bytes of one element of parameters and activations: train.dtype.
std::int64_t element_bytes(const config::RunConfig& config);

/// Bytes of one element of the residual stream and of messages between stages: float32 or wider with
/// model.fp32_residual_connection, else element_bytes().
std::int64_t stream_element_bytes(const config::RunConfig& config);

/// Elements at which a bucket of gradients closes, as buffer_layout() takes it: optimizer.bucket_size, or Megatron's
/// default of max(40 M, 1 M x dp). 0, one bucket, without overlap: there is nothing to gain from several reductions.
std::int64_t bucket_elements(const config::OptimizerConfig& optimizer, int dp);

/// What backward computes again, as Korthikanti et al. 2022 name it: nothing, the attention core, or whole layers.
enum class Recomputation : std::uint8_t { None, Selective, Full };

/// Bytes of activations that a transformer layer keeps for backward by the formulas of Korthikanti et al. 2022, table
/// 2: 16-bit elements, one-byte dropout masks, stored attention scores; sequence s, microbatch b, width h, a heads, t
/// tensor-parallel ranks. What this implementation keeps is in memory.h.
double paper_activation_bytes(double s, double b, double h, double a, double t, bool sequence_parallel,
                              Recomputation recomputation);

}  // namespace megatron::plan
