#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "megatron/comm/group.h"
#include "megatron/model/decoding/decode.h"

namespace megatron::generate {

/// A whole model that decodes from a cache, its stages one on each rank of a pipeline.
class StagedModel {
 public:
  /// `stage`: this rank's; `pp`: the ranks that hold the stages in order; `tensor`: dtype and device of activations.
  StagedModel(model::CachedGpt stage, comm::Group pp, at::TensorOptions tensor);
  /// The whole model on this rank.
  // NOLINTNEXTLINE(google-explicit-constructor): a stage that is the model is one
  StagedModel(model::CachedGpt whole) : StagedModel(std::move(whole), comm::Group(), at::TensorOptions()) {}

  const model::TransformerOptions& options() const { return stage_.options(); }
  at::Device device() const { return stage_.device(); }
  model::KvCache make_cache(std::int64_t batch, std::int64_t capacity) const {
    return stage_.make_cache(batch, capacity);
  }

  /// tokens [b, s] int64, the same on every rank, which follow the cache's rows -> logits [b, vocab] after the last of
  /// them, the same on every rank. Collective over tp and pp: a message of [s, b, h] from stage to stage, and the
  /// logits from the last to all.
  /// `states`, where not null: CachedGpt::forward().
  at::Tensor forward(const at::Tensor& tokens_bs, model::KvCache& cache, at::Tensor* states = nullptr) const;
  /// As forward() of one sequence, but -> logits [s, vocab], those after each of its tokens.
  at::Tensor forward_all(const at::Tensor& tokens_1s, model::KvCache& cache, at::Tensor* states = nullptr) const;
  /// Blocks of this rank for the keys and values of many sequences.
  model::KvPool make_pool(std::int64_t blocks) const { return stage_.make_pool(blocks); }
  /// forward() of one sequence in a pool.
  at::Tensor forward(const at::Tensor& tokens_1s, model::PagedCache& cache) const;
  /// forward() of one sequence in a pool, but -> logits [s, vocab], those after each of its tokens.
  at::Tensor forward_all(const at::Tensor& tokens_1s, model::PagedCache& cache) const;
  /// One more token [b] int64 of each of b sequences in a pool (CachedGpt::step) -> logits [b, vocab].
  at::Tensor step(const at::Tensor& tokens_b, std::span<model::PagedCache* const> caches) const;
  /// CachedGpt::token_graph(); null where the model is on more than one rank.
  std::unique_ptr<model::TokenGraph> token_graph(model::KvCache& cache) const;
  /// The ranks that hold the stages, in order.
  const comm::Group& stages() const { return pp_; }

 private:
  /// What `compute` makes of `tokens`, stage after stage: between them [s, b, h], at last logits [rows, vocab].
  template <class Compute>
  at::Tensor through_stages(const at::Tensor& tokens, std::int64_t s, std::int64_t b, std::int64_t rows,
                            const Compute& compute) const;

  model::CachedGpt stage_;
  comm::Group pp_;
  at::TensorOptions tensor_;
};

}  // namespace megatron::generate
