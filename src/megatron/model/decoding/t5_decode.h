#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/stages.h"

// s tokens of the encoder, h hidden, n/t heads of this rank, d head size.
namespace megatron::model {

/// What a stage keeps of the texts that a T5 has read and of the answers that it writes. Row r is an answer; those to
/// one text stand beside each other, as many for each text.
struct T5Cache {
  /// Of each layer of the stage's decoder, made of the encoder's states once and for all: [s, texts, n/t, d].
  std::vector<at::Tensor> cross_keys, cross_values;
  /// Of the tokens written, as many rows again as there may be at first: [capacity, rows, n/t, d].
  std::vector<at::Tensor> keys, values;
  at::Tensor key_lengths_b;  ///< [texts] int32: tokens of each text; undefined: s
  std::int64_t texts = 0, length = 0, capacity = 0;

  /// Goes on with the answers `rows` [k] int64, some of them maybe more than once, to the texts `kept` [p] int64: those
  /// to one beside each other, k / p for each.
  void keep(const at::Tensor& rows, const at::Tensor& kept);
};

/// A stage of a T5, or the whole model as the one stage, that reads texts once and decodes from what it has written: no
/// dropout, no gradients. Results do not depend on the stages nor on which texts share a batch, up to summation order.
class CachedT5 {
 public:
  /// `parameters`: at least those of `part`. Throws std::logic_error for sequence_parallel and for what is no T5.
  CachedT5(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
           comm::Group tp);

  /// The encoder's layers of this stage, which has some. in: on the first stage tokens [texts, s] int64, on the others
  /// what the stage before returned -> [s, texts, h], which behind the encoder's last layer are its states.
  /// `key_lengths_b` as in T5Cache. Collective over tp. Throws ConfigError for a token outside the model's.
  at::Tensor read(const at::Tensor& in, const at::Tensor& key_lengths_b = {}) const;

  /// An empty answer to each text whose states [s, texts, h] the encoder gave. Collective over tp.
  T5Cache begin(const at::Tensor& states, const at::Tensor& key_lengths_b = {}) const;

  /// The decoder's layers of this stage, which has some, on one more token of each answer, which the cache takes in.
  /// in: where the decoder begins tokens [rows] int64, behind it what the stage before returned -> [1, rows, h], on the
  /// last stage the logits [rows, vocab] of what comes next. Collective over tp. Throws as read().
  at::Tensor write(const at::Tensor& in, T5Cache& cache) const;

  const TransformerOptions& options() const;
  ~CachedT5();
  CachedT5(CachedT5&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::model
