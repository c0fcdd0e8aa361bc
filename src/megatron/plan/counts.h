#pragma once
#include <cstdint>

#include "megatron/config/run_config.h"
#include "megatron/plan/parameters.h"

// How much there is to hold and to compute.
namespace megatron::plan {

/// Elements of all parameters of the whole model, rows that pad the vocabulary included.
std::int64_t parameter_count(const GptShape& shape);

/// Floating-point operations of forward and backward over `sequences` sequences of `seq_length` tokens, as Megatron-LM
/// counts them: a multiply-add is two, backward is twice forward, causal attention counts half of its square, and the
/// output layer counts its padded rows. What is computed again in backward does not count.
double training_flops(const GptShape& shape, std::int64_t sequences, std::int64_t seq_length);

/// Bytes of one element of parameters, gradients and activations: train.dtype.
std::int64_t element_bytes(const config::RunConfig& config);

/// Elements at which a bucket of gradients closes, as buffer_layout() takes it: optimizer.bucket_size, or Megatron's
/// default of max(40 M, 1 M x dp). 0, one bucket, without overlap: there is nothing to gain from several reductions.
std::int64_t bucket_elements(const config::OptimizerConfig& optimizer, int dp);

/// Bytes that one rank holds during a step, by kind. All but `activations` and `logits` are exact; those two are the
/// tensors that forward keeps for backward, without the workspace of single operators.
struct MemoryPlan {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer_state = 0;  ///< two moments
  std::int64_t activations = 0;      ///< of one microbatch
  std::int64_t logits = 0;           ///< of the tokens whose logits are held at once
  std::int64_t total() const { return parameters + gradients + optimizer_state + activations + logits; }
};

/// What tensor-parallel rank `tp_rank` of `config.parallel.tp` holds. `config` is resolved (rules.h).
MemoryPlan memory_plan(const config::RunConfig& config, const GptShape& shape, int tp_rank);

}  // namespace megatron::plan
