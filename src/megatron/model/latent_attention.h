#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/comm/group.h"
#include "megatron/kernels/rope.h"
#include "megatron/model/block.h"
#include "megatron/model/operators.h"
#include "megatron/plan/layer.h"

// Multi-head latent attention (DeepSeek-AI 2024, section 2.1; plan::Latents). What makes latents is whole on each
// tensor-parallel rank and sees the whole sequence; of latents each rank makes its own heads, so that a layer
// communicates as one without latents does: the gradient of what it reads is a sum over ranks, and so are those of the
// down projections and of the norms.
// s sequence, b microbatch, n heads of this rank, d Latents::head_size(), c Latents::cached().
namespace megatron::model {

/// Queries and latents of the stream behind its norm: `x` [s, b, h], with `sequence_parallel` [s/t, b, h], which
/// `again` makes once more. `samples`: of a pass that drops what adapters read (Adapter::Pass). Collective over `tp`
/// with sequence_parallel, and backward.
LatentInput compressed(const at::Tensor& x, parallel::RecomputeFunction again, const BranchModules& branch,
                       const comm::Group& tp, bool sequence_parallel, const at::Tensor& samples = {});

/// What attention over the sequence itself reads (heads_of()): [s, b, n * 3 * d], per head its query, key and value. Of
/// queries and keys the features that are rotated come first; behind the last of each is zero up to d. `samples`: as
/// above.
at::Tensor joined_heads(const LatentInput& in, const BranchModules& branch, const at::Tensor& samples = {});

/// Without what pads them, [s, b, n * value], the values that attention of joined_heads() gave, [s, b, n * d].
Recomputable without_padding(const Recomputable& out, const BranchModules& branch);

/// What attention over cached latents reads: one key of all heads is a token's cached numbers, and its value too. The
/// up projection of keys is multiplied into the queries, that of values into what attention gives, so that no head of a
/// token in the cache is ever made.
struct LatentRows {
  at::Tensor queries;  ///< [s, b, 1, n, c]
  at::Tensor keys;     ///< [s, b, 1, c]
};
/// Rotated by `position_ids_bs` [b, s]; an undefined table rotates nothing. Without gradients. `sequence`: the number
/// of the first in the batch, whose adapters beside the up projection all have.
LatentRows latent_rows(const LatentInput& in, const BranchModules& branch, const kernels::RopeTable& table,
                       const at::Tensor& position_ids_bs, std::int64_t sequence = 0);
/// [s, b, n * value] of what attention of LatentRows gave, [s, b, n, c].
at::Tensor values_of_rows(const at::Tensor& out, const BranchModules& branch, std::int64_t sequence = 0);

}  // namespace megatron::model
