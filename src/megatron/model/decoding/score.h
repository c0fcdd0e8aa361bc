#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "megatron/comm/group.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/output_layer.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/stages.h"

// s sequence, b batch, h hidden.
namespace megatron::model {

/// Tokens of a batch that are scored, each by the hidden state of the token before it. All are of positions from
/// `first` on: what stands before takes part as keys and values, and is not computed any further in the last layer.
struct ScoredTokens {
  std::int64_t first = 0;
  at::Tensor rows;         ///< [n] int64: (position - first) * b + sequence of the hidden states
  at::Tensor labels;       ///< [n] int64: the tokens
  bool likeliest = false;  ///< whether the likeliest tokens are asked for
};

/// A stage of a GPT, or the whole model as the one stage, which says how likely given tokens are: no dropout, no
/// gradients, and logits for these tokens alone. Results do not depend on the stages.
class ScoringGpt {
 public:
  /// `parameters`: at least those of `part`, a tied output's by the embedding's name. Throws std::logic_error for
  /// sequence_parallel: some rows do not divide.
  ScoringGpt(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
             comm::Group tp);

  /// A stage that is not the last. in: on the first stage the tokens [b, s] int64, else what the stage before returned
  /// -> [s, b, h]. Collective over tp: two all-reduces a layer, one for the embedding. Throws ConfigError for a token
  /// outside the model's, or more of them than it has positions.
  at::Tensor forward(const at::Tensor& in) const;

  /// The last stage, or the whole model: `in` as for forward(). Communication as there and as for
  /// parallel::VocabParallelOutput::token_losses.
  parallel::VocabParallelOutput::TokenLosses score(const at::Tensor& in, const ScoredTokens& scored) const;

  /// What the last norm gives of every token, [s, b, h] of the model's dtype, on the last stage alone (else
  /// logic_error): also of an encoder's texts, which have no padding and token types 0. `in`, communication and errors
  /// as for forward().
  at::Tensor states(const at::Tensor& in) const;

  const TransformerOptions& options() const;
  ~ScoringGpt();
  ScoringGpt(ScoringGpt&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::model
