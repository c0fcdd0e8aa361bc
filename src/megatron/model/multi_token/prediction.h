#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/comm/group.h"
#include "megatron/model/block.h"
#include "megatron/model/operators.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/layer.h"

// Multi-token prediction (DeepSeek-AI 2024, section 2.2), in the form of Megatron-Core. s sequence, b microbatch,
// h hidden, t ranks of tp.
namespace megatron::model {

/// A depth (plan::PredictionDepth) on its parameters.
struct PredictionModules {
  Norm token_norm, state_norm, final_norm;
  parallel::ColumnParallelLinear projection;  ///< whose whole output every rank gets
  Block block;
  comm::Group sequence;  ///< over which the stream is split along the sequence

  PredictionModules(const parallel::ParameterStore& parameters, const plan::PredictionDepth& depth,
                    const Block::Options& options, const comm::Group& tp);

  /// What the block reads, [s, b, h] (sequence_parallel: [s/t, b, h]), as `states` and `embeddings` are: the states of
  /// the depth before, and the embeddings of the tokens ahead. Keeps both, whose norms are computed again. Collective
  /// over tp: an all-gather forward, and an all-reduce of twice the stream backward; with sequence_parallel two
  /// all-gathers, and backward two and a reduce-scatter.
  at::Tensor input(const at::Tensor& states, const at::Tensor& embeddings) const;
};

/// The batch with the tokens, labels, mask and positions from `places` further on in each sequence: 0 where that is
/// past the sequence's end or, with first_key_bs, in another document (Megatron-Core's roll_tensor, as often). It has a
/// mask, of dtype `precise` where the batch has none, and positions. Of whole sequences.
Batch batch_ahead(const Batch& batch, std::int64_t places, at::ScalarType precise);

}  // namespace megatron::model
