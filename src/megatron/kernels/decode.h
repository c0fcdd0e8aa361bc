#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/rope.h"

// A token of each of few sequences, from buffer to buffer, on the CPU. Norms, activations and attention are those of
// their own headers, to the bit; what is left out is a tensor made and an operator dispatched for each: in a small
// model these took as long as a seventh of its weights. Buffers are contiguous [rows, features] float32, bf16 or fp16,
// as are the parameters; linear layers: few_rows_linear (matmul.h).
namespace megatron::kernels {

/// Whether these functions take x.
bool decodes(const at::Tensor& x);

/// x += addend [rows, features], or a bias [features].
void add_to_rows(const at::Tensor& x, const at::Tensor& addend);
/// x += bias, which may be undefined, then x += residual: rounded once.
void add_residual_to_rows(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual);

/// y = norm(x): layer norm or, where `bias` is undefined, RMSNorm.
void norm_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
               double epsilon);

/// y = f(x + bias), gated as bias_gated_activation. x is overwritten, `bias` may be undefined.
void activate_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& bias, Activation form, bool gated);

/// A step of decoding as attention sees it: b sequences, n query heads of this rank in g groups, d head size.
struct CacheStep {
  std::int64_t batch, heads, groups, head_size;
  double scale = 0, soft_cap = 0;  ///< as of AttentionOptions
  RopeTable rope;                  ///< undefined tensors: no rotary positions
  at::Tensor position_b;           ///< [b] int64, positions of the table; undefined where there is none
  at::Tensor sinks;                ///< [n] float32, as of AttentionOptions; undefined: none
  at::Tensor first_key_b;          ///< [b] int32: see AttentionOptions; undefined: 0
  std::int64_t length = 0;         ///< rows of the cache that are filled
};

/// Scratch of the functions below: float32, one for all layers of the step, whose `length` is that of its longest
/// sequence.
at::Tensor attention_scratch(const CacheStep& step);

/// Attention of the new tokens over the cache's rows and themselves: out [b, n d] of the fused projection
/// qkv [b, g (n/g + 2) d], rows per group: its queries, key, value. Queries and keys are rotated where they lie.
/// keys, values: [capacity, b, g, d] with d side by side, whose row `length` is written.
void attend_to_cache(const at::Tensor& out, const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                     const CacheStep& step, const at::Tensor& scratch);

/// One of several sequences whose keys and values are in blocks of a pool (attention_over_blocks).
struct SequenceBlocks {
  std::span<const std::int64_t> blocks;  ///< room for one token more than it has
  std::int64_t length = 0;               ///< tokens whose keys and values are there
  std::int64_t first_key = 0;            ///< the first one that the new token sees
};

/// attend_to_cache() of each of step.batch sequences over its own blocks of keys and values [blocks of the pool, r, g,
/// d], r a power of two of 64 or more, to the bit: what one gets does not depend on the others. Of `step` the first
/// keys and the length are those of the sequences.
void attend_to_blocks(const at::Tensor& out, const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                      std::span<const SequenceBlocks> sequences, const CacheStep& step, const at::Tensor& scratch);

}  // namespace megatron::kernels
