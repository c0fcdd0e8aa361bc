#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/parameters/gradient_pool.h"
#include "megatron/plan/parameters/parameter_pool.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/plan/ranks/rank_roles.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {

/// The parameters that rank (tp_rank, pp_rank) trains; of experts those of the first expert-parallel rank.
std::vector<ParameterSpec> rank_parameters(const ResolvedRun& run, int tp_rank, int pp_rank);

/// The layout of one rank's buffers, `specs` being its parameters (model_parameters): Megatron-Core's padding with
/// optimizer.use_distributed_optimizer, and then a tied embedding whose copies are on two pipeline ranks has a bucket
/// of its own, so that the same data-parallel rank owns the same elements of both. Where gradients are shared too
/// (optim_grads) a bucket is of optimizer.bucket_size, also without overlap, and by default one layer; where parameters
/// are (optim_grads_params) it is one layer, or a part of one that has optimizer.bucket_size elements.
BufferLayout rank_layout(const ResolvedRun& run, const std::vector<ParameterSpec>& specs);

/// Whether pipeline ranks `a` and `b` have parameters of the same sizes in the same order, as far as that can be told
/// without going through them.
bool same_sizes(const ResolvedRun& run, int a, int b);

/// How experts lie on the ranks of a stage; etp is not 0.
ExpertLayout expert_layout(const config::ParallelConfig& parallel);

/// Who is what to whom, by the run's grid, parallel.ep and parallel.etp.
RankRoles roles_of(const ResolvedRun& run);

/// The experts that `rank` holds, and which slices of them.
ExpertShare expert_share(const ResolvedRun& run, int rank);

/// The place of `rank` among the ranks that share the update of each element between them: those of dp x cp (of experts
/// tp x dp x cp / (ep x etp)) with the distributed optimizer, else one. Its number among them differs by rank alone.
Owners owners_of(const ResolvedRun& run, int rank = 0);

/// Whether several ranks share the update of any element.
bool shares_state(const ResolvedRun& run);

/// Where whole buckets of that layout take turns, with optimizer.data_parallel_sharding_strategy optim_grads or
/// optim_grads_params on several data-parallel ranks; else every bucket has memory of its own. So it has by default
/// where pool and sums would be no smaller than whole gradients; a bucket size that is given is taken as it is.
/// `specs`: model_parameters.
std::optional<GradientPool> rank_gradient_pool(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                                               const BufferLayout& layout);

/// Where whole buckets of parameters take turns, with optim_grads_params on several data-parallel ranks; nothing where
/// each has memory of its own. `parts`: the rank's stages.
std::optional<ParameterPool> rank_parameter_pool(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                                                 const BufferLayout& layout, const std::vector<StageSpec>& parts);

/// The weights that adapters are trained on, as a rank holds them: with optim_grads_params on several data-parallel
/// ranks its shards and layers in turn, as rank_parameter_pool() has them; else all, without gaps.
struct FrozenWeights {
  std::vector<ParameterSpec> specs;
  BufferLayout layout;
  std::optional<ParameterPool> pool;
};
/// Nothing without lora.rank. `parts`, `experts`: as those of trained_parameters().
std::optional<FrozenWeights> frozen_weights(const ResolvedRun& run, int tp_rank, const std::vector<StageSpec>& parts,
                                            const ExpertShare& experts = {});

/// What people must hear of these strategies: a line for each pipeline rank on which one saves nothing.
std::vector<std::string> sharding_warnings(const ResolvedRun& run);

/// Bytes of an element of a rank's buffers.
struct ElementBytes {
  std::int64_t value = 4;  ///< parameters
  std::int64_t gradient = 4;
  // Of the elements that a rank owns:
  std::int64_t master = 0;
  std::int64_t matrix_state = 8;  ///< of the matrices of layers
  std::int64_t state = 8;         ///< of other parameters
};
ElementBytes element_bytes_of(const config::RunConfig& config);

/// Bytes of masters and state on that of the ranks with these parameters which owns most.
std::int64_t optimizer_bytes(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                             const BufferLayout& layout);

}  // namespace megatron::plan
