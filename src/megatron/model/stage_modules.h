#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "megatron/kernels/rope.h"
#include "megatron/model/bert_heads.h"
#include "megatron/model/block.h"
#include "megatron/model/multi_token/prediction.h"
#include "megatron/model/relative_bias.h"
#include "megatron/model/task_head.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/embedding.h"
#include "megatron/parallel/output_layer.h"

namespace megatron::model {

/// The ids that StageModules::embed() looks up, on the CPU, where they are on another device.
struct HostIds {
  at::Tensor tokens_sb, positions_sb, types_sb;
};

/// What one pipeline stage of a model is made of: the layers of `part`, as `options` say, on their parameters. Training
/// (transformer_stage.h) and decoding (decode.h) run the same modules.
struct StageModules {
  /// Of the first stage; the words of the one too in which a T5's decoder begins; words and positions of one with
  /// depths; the last two where they are learned.
  std::optional<parallel::VocabParallelEmbedding> words, positions, types;
  kernels::RopeTable rope;         ///< of rotary positions, else undefined tensors
  kernels::RopeTable local_rope;   ///< of the layers that have positions of their own
  std::vector<Block> blocks;       ///< layers part.first_layer …
  std::optional<Norm> final_norm;  ///< of the last stage
  // A T5's: of stages that have layers of the stack; the norm of the one that has the encoder's last.
  std::optional<RelativeBias> encoder_bias, decoder_bias;
  std::optional<Norm> encoder_norm;
  std::optional<BertHeads> heads;                       ///< of the last stage of a BERT
  std::optional<parallel::VocabParallelOutput> output;  ///< of the last stage
  std::vector<PredictionModules> depths;                ///< of multi-token prediction: of the last stage
  std::optional<TaskHead> task_head;                    ///< instead of these two, where the shape says so

  StageModules(const TransformerOptions& options, const plan::StageSpec& part,
               const parallel::ParameterStore& parameters, const comm::Group& tp);

  /// The table of a layer's attention; of one without positions its tensors are undefined.
  const kernels::RopeTable& rope_of(const plan::SelfAttention& attention) const {
    return !attention.rotary ? no_rope_ : attention.local_rotary ? local_rope : rope;
  }

  /// Throws ConfigError where positions are not the model's: `position_ids` int64 or, where undefined, 0 … count - 1.
  void check_positions(const at::Tensor& position_ids, std::int64_t count) const;

  /// tokens, positions [s, b] int64 -> [s, b, h] before dropout, as the stream: with ModelShape::wide_stream float32 or
  /// wider. Of a stage with `words`. `types_sb`: of a model with
  /// token types; undefined: all 0. Ids are checked in `host`, where it has them. Collective over tp.
  at::Tensor embed(const at::Tensor& tokens_sb, const at::Tensor& positions_sb, const at::Tensor& types_sb = {},
                   const HostIds& host = {}) const;

  /// How the attention of one of the blocks is computed.
  using AttentionOf = std::function<Attend(std::size_t block)>;
  /// All blocks without dropout: the stream [s, b, h] before the first -> after the last, on the last stage normalized
  /// (`y`). An attention that gives the last rows alone leaves only these to what follows. Collective over tp.
  Normed run(const at::Tensor& x_sbh, const AttentionOf& attention) const;

  /// What the output layer takes of the states `y` behind the last norm: times ModelShape::output_scale.
  at::Tensor for_output(const at::Tensor& y) const;
  double output_scale() const { return output_scale_; }

  /// What embed() multiplies by, and the row of learned positions that the first position has.
  double embedding_scale() const { return embedding_scale_; }
  std::int64_t position_offset() const { return position_offset_; }

 private:
  kernels::RopeTable no_rope_;
  std::int64_t max_positions_, position_offset_;
  double output_scale_, embedding_scale_;
  at::ScalarType stream_;
};

/// Dtype and device of the residual stream, and so of messages between stages, of a model with such parameters.
at::TensorOptions stream_options(const plan::ModelShape& shape, const at::TensorOptions& parameters);

/// [s, b] int64: 0, 1, 2, … in each sequence.
at::Tensor counted_positions(std::int64_t s, std::int64_t b, at::Device device);

}  // namespace megatron::model
