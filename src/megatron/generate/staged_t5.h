#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/decoding/t5_decode.h"
#include "megatron/plan/stages.h"

namespace megatron::generate {

/// A whole T5, its stages one on each rank of a pipeline; encoder and decoder may meet anywhere, also inside of one.
class StagedT5 {
 public:
  /// `stage`: this rank's of `parts`, all stages of the model, which the ranks of `pp` hold in order; `tensor`: dtype
  /// and device of activations.
  StagedT5(model::CachedT5 stage, const std::vector<plan::StageSpec>& parts, comm::Group pp, at::TensorOptions tensor);

  const model::TransformerOptions& options() const { return stage_.options(); }
  at::TensorOptions tensor() const { return tensor_; }

  /// Reads texts: tokens [texts, s] int64 and how many of each count [texts] int32 (undefined: all), the same on every
  /// rank -> the cache with which the stage decodes from an empty answer to each. Collective over tp and pp: the
  /// encoder's stream [s, texts, h] from stage to stage, its states from the last of its stages to all.
  model::T5Cache read(const at::Tensor& tokens_bs, const at::Tensor& key_lengths_b = {}) const;

  /// The logits [rows, vocab] behind one more token [rows] int64 of each answer, both the same on every rank.
  /// Collective over tp and pp: [1, rows, h] from stage to stage of the decoder, the logits from the last to all.
  at::Tensor write(const at::Tensor& tokens_b, model::T5Cache& cache) const;

 private:
  model::CachedT5 stage_;
  comm::Group pp_;
  at::TensorOptions tensor_;
  int encoder_ends_ = 0, decoder_begins_ = 0;  ///< stages with the encoder's last layer, the decoder's first
};

}  // namespace megatron::generate
