#pragma once
#include <cstdint>

#include "megatron/config/run_config.h"
#include "megatron/plan/parameters.h"

// How much there is to hold and to compute.
namespace megatron::plan {

/// Elements of all parameters of the whole model, rows that pad the vocabulary included.
std::int64_t parameter_count(const GptShape& shape);

/// Floating-point operations of forward and backward over `sequences` sequences of `seq_length` tokens, as Megatron-LM
/// counts them: a multiply-add is two, backward is twice forward, causal attention counts half of its square (a BERT's
/// all of it), and the output layer counts its padded rows, of a BERT for every token and with the matrix before it.
/// What is computed again in backward does not count, nor that ranks which share a key and value head compute both.
/// `decoder_length`: of a T5, whose encoder's is seq_length; what its decoder sees of the encoder counts with it.
double training_flops(const GptShape& shape, std::int64_t sequences, std::int64_t seq_length,
                      std::int64_t decoder_length = 0);

/// Floating-point operations of the forward pass, by part; the embedding has none. As training_flops() counts.
struct ForwardFlops {
  double layer_matrices = 0;   ///< of one layer: products with weights
  double layer_fc1 = 0;        ///< the part of these that is the MLP's first product
  double layer_attention = 0;  ///< of one layer: products of activations
  double output = 0;           ///< output layer
};
ForwardFlops forward_flops(const GptShape& shape, std::int64_t sequences, std::int64_t seq_length);
/// Of a T5's decoder, each of whose layers also sees `encoder_length` tokens of the encoder; layers of the encoder are
/// those of forward_flops().
ForwardFlops decoder_flops(const GptShape& shape, std::int64_t sequences, std::int64_t decoder_length,
                           std::int64_t encoder_length);

/// Bytes of one element of parameters and activations: train.dtype.
std::int64_t element_bytes(const config::RunConfig& config);

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
