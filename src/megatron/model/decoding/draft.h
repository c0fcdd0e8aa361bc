#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/stages.h"

// s sequence, h hidden.
namespace megatron::model {

/// The depths of multi-token prediction of a GPT's last stage, which guess what follows a text (DeepSeek-AI 2024,
/// section 2.2): depth k the token k + 1 after the last one that is known. Each has a cache of keys and values for the
/// text, of the rows in which it has read known tokens alone.
class Drafter {
 public:
  /// `parameters`: at least those of `part`, the last stage. Throws std::logic_error for sequence_parallel, and for
  /// what predicts nothing.
  Drafter(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
          comm::Group tp);

  std::int64_t depths() const;
  /// A new text, of at most `capacity` tokens.
  void begin(std::int64_t capacity);
  /// What the model's last norm gave, [s, 1, h], of the text's tokens from number `first` on.
  void see(const at::Tensor& states, std::int64_t first);
  /// The likeliest tokens to follow the text, `count` of them, at most depths(). `tokens`: all of it; states were seen
  /// of all but the last. Collective over tp: of each depth a layer, an embedding and an all-gather of logits. The
  /// same on every rank. Throws ConfigError for a token outside the model's.
  std::vector<std::int64_t> draft(std::span<const std::int64_t> tokens, std::int64_t count);

  ~Drafter();
  Drafter(Drafter&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::model
