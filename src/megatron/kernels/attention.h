#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/kernels/dropout.h"

// s queries, k keys, b batch, n query heads of this rank in g groups that share a key and value head (Ainslie et al.
// 2023; g = n: every head has its own), d head size. q [s, b, g, n/g, d], or [s, b, n, d] where g = n; k, v [k, b, g,
// d]: any strides with the last dimension contiguous, so that they can be views of the fused projection. Any floating
// dtype; scores and sums are float32 (float64 for float64).
namespace megatron::kernels {

struct AttentionOptions {
  double scale = 0;        ///< softmax(scale q k^T); 0: 1/sqrt(d)
  double soft_cap = 0;     ///< scaled scores x are soft_cap tanh(x / soft_cap); 0: x. Not with a bias
  bool causal = true;      ///< query i sees keys <= i + (keys - queries): a cache before the queries is seen whole
  std::int64_t ahead = 0;  ///< where causal, each query sees so many keys more
  at::Tensor first_key =
      {};  ///< optional [b, s] int32: query i sees keys >= first_key[b, i] (documents packed in a sample)
  at::Tensor key_lengths =
      {};  ///< optional [b] int32: the keys of sample b are its first key_lengths[b]; padding follows
  Dropout dropout =
      {};  ///< on the probabilities; see attention_dropout_mask, whose offsets are of these queries and keys
  std::int64_t head_offset = 0;  ///< first head of this rank, for dropout
  /// Optional [n, s + k - 1] float32 (float64 for float64): what is added to the scaled score of query i and key j,
  /// a function of their distance alone, at j - i + s - 1 (Raffel et al. 2020).
  at::Tensor bias = {};
  /// Optional [n] float32 (float64 for float64): a score of each head that takes its share of the softmax, and has no
  /// key and no value (Xiao et al. 2024). Neither scaled nor capped.
  at::Tensor sinks = {};
};

struct AttentionOutput {
  at::Tensor out;        ///< [s, b, n, d] contiguous, heads in the order of q
  at::Tensor logsumexp;  ///< [b, n, s] of the scaled scores, sinks included; float32, or float64 for float64 inputs
};

/// Exact attention without storing the scores (Dao et al. 2022): blocks of keys, skipped where causally hidden.
AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options);

/// attention() of one sequence whose keys and values lie in blocks of a pool, k and v [blocks of the pool, r, g, d] of
/// any strides with the last dimension contiguous: its key i is row i mod r of block blocks[i / r]. q [s, 1, …];
/// `blocks` int64 of enough for `keys`, contiguous, on the device of k. Gives the bits that attention() gives for the
/// keys side by side. On the CPU blocks are read where they lie where r is a power of two of 64 or more.
AttentionOutput attention_over_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& blocks, std::int64_t keys, const AttentionOptions& options);

/// Writes dq, dk, dv (views shaped as q, k, v; overwritten). Probabilities are computed again block by block. `dbias`:
/// where there is a bias its gradient, shaped as it and overwritten; else undefined.
void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias = {});

/// The gradient of options.sinks, shaped as they are: of the rows of `dout` and of `forward`, which have all of their
/// keys. attention_backward() needs no sinks: what it reads of the forward pass has them in it.
at::Tensor sink_gradient(const at::Tensor& dout, const AttentionOutput& forward, const at::Tensor& sinks);
/// Makes attention without sinks attention with them, in place: for kernels that have none. Rounds once more.
void add_sinks_(const AttentionOutput& forward, const at::Tensor& sinks);

}  // namespace megatron::kernels
