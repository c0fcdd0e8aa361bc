#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/comm/group.h"
#include "megatron/model/decode.h"

namespace megatron::generate {

/// A whole model that goes on from a cache, its stages one on each rank of a pipeline.
class StagedGpt {
 public:
  /// `stage`: this rank's; `pp`: the ranks that hold the stages in order; `tensor`: dtype and device of activations.
  StagedGpt(model::CachedGpt stage, comm::Group pp, at::TensorOptions tensor);
  /// The whole model on this rank.
  // NOLINTNEXTLINE(google-explicit-constructor): a stage that is the model is one
  StagedGpt(model::CachedGpt whole) : StagedGpt(std::move(whole), comm::Group(), at::TensorOptions()) {}

  const model::GptOptions& options() const { return stage_.options(); }
  model::KvCache make_cache(std::int64_t batch, std::int64_t capacity) const {
    return stage_.make_cache(batch, capacity);
  }

  /// tokens [b, s] int64, the same on every rank, which follow the cache's rows -> logits [b, vocab] after the last of
  /// them, the same on every rank. Collective over tp and pp: a message of [s, b, h] from stage to stage, and the
  /// logits from the last to all.
  at::Tensor forward(const at::Tensor& tokens_bs, model::KvCache& cache) const;

 private:
  model::CachedGpt stage_;
  comm::Group pp_;
  at::TensorOptions tensor_;
};

}  // namespace megatron::generate
