#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

namespace megatron::parallel {

/// The output layer and its cross entropy, vocabulary split over a tensor-parallel group, t = tp.size().
/// weight [rows/t, h], rows spec.begin() … of the full matrix (often the word embedding), and bias [rows/t], which may
/// be null; rows at or past `vocab` are padding, which takes no part in softmax, loss or gradient.
class VocabParallelOutput {
 public:
  struct Options {
    std::int64_t vocab = 0;          ///< tokens of the vocabulary
    double soft_cap = 0;             ///< logits x are soft_cap tanh(x / soft_cap); 0: x
    double label_smoothing = 0;      ///< e: loss = (1-e) * -log p(label) + e * mean over the vocabulary of -log p
    std::int64_t chunk_tokens = 0;   ///< tokens whose logits exist at once; 0: all
    bool sequence_parallel = false;  ///< hidden is this rank's part of the sequence
  };

  /// Labels and mask on the CPU, where those of the batch are on another device.
  struct Labels {
    at::Tensor labels, mask;
  };

  VocabParallelOutput(ParameterPtr weight, comm::Group tp, Options options, ParameterPtr bias = nullptr);

  /// Sum over tokens of mask * cross entropy, as a float64 scalar, the same on every rank. hidden [s, b, h] the same on
  /// every rank, with sequence_parallel [s/t, b, h] positions k*s/t … of rank k; labels [s, b] int64 and mask [s, b]
  /// float32 (float64 for float64 hidden), both whole. Throws ConfigError for a label outside the vocabulary whose mask
  /// is not 0.
  ///
  /// The logits [chunk, rows/t] are never kept nor gathered, nor computed twice: where gradients are on, the forward
  /// pass turns each chunk of them into the gradients of hidden, weight and bias for an upstream gradient of 1, and
  /// writes those of the parameters into their buffers. Tokens whose mask is 0 have no logits where they are many. So
  /// go backward from the sum as it is, once; backward throws std::logic_error for any other upstream gradient.
  /// `gradient_scale` multiplies all these gradients where they begin, so that those of fp16 stay above zero. Without
  /// gradients nothing is written. `host`: labels are checked and tokens counted there, without waiting for the device;
  /// undefined: where they are. The upstream gradient is looked at on a CPU alone.
  ///
  /// Communication: a chunk: two all-reduces of [chunk]-sized vectors; with gradients one of d hidden in all.
  /// sequence_parallel: one all-gather of hidden, and a reduce-scatter in place of the all-reduce of d hidden.
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& mask,
                      double gradient_scale = 1, const Labels& host = {}) const;

  /// What the layer says of single tokens, the same on every rank.
  struct TokenLosses {
    at::Tensor loss;       ///< [n] cross entropy; float32, float64 for float64 hidden
    at::Tensor likeliest;  ///< [n] int64, the first of equals (of NaN: none, `vocab`); undefined where not asked for
  };
  /// Cross entropy of rows hidden [n, h], which every rank has whole, with labels [n] int64, one by one and without
  /// gradient nor smoothing. Chunks and communication as for loss_sum(); `likeliest` adds two all-reduces a chunk.
  /// Throws ConfigError for a label outside the vocabulary.
  TokenLosses token_losses(const at::Tensor& hidden, const at::Tensor& labels, bool likeliest) const;

  /// [.., h] -> [.., vocab]: logits of the whole vocabulary on every rank, without gradient. One all-gather. With
  /// sequence_parallel [s/t, .., h] -> [s, .., vocab], and one more all-gather.
  at::Tensor logits(const at::Tensor& hidden) const;

  /// logits() with gradient, for a loss of one's own: the logits are kept until backward, which writes the gradients of
  /// weight and bias and must begin with the same gradient on every rank. Backward one all-reduce of d hidden; with
  /// sequence_parallel a reduce-scatter in its place, and an all-gather of hidden.
  at::Tensor differentiable_logits(const at::Tensor& hidden) const;

 private:
  ParameterPtr weight_, bias_;
  comm::Group tp_;
  comm::Group sequence_;  ///< over which hidden is split along the sequence
  Options options_;
};

}  // namespace megatron::parallel
