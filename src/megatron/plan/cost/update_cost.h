#pragma once
#include <optional>

#include "megatron/plan/cost/cost_model.h"

// What ends a step: gradients reduced between the ranks that hold the same weights, the update of what a rank owns,
// parameters gathered. Experts' weights are held by other ranks than the rest (RankRoles, Weights::Experts).
namespace megatron::plan {

/// Elements of weights that the same ranks hold, and the buckets that they are reduced in.
struct HeldElements {
  double elements = 0, buckets = 0;
};

/// Elements that a rank gathers of parameters that take turns (ZeRO stage 3), in a microbatch's passes.
struct GatheredElements {
  double forward = 0, backward = 0, units = 0;
  double experts_share = 0;  ///< of them
};

/// A rank's buffers, as far as exchanging and updating them takes time.
struct UpdatedBuffers {
  HeldElements dense = {}, experts = {};  ///< experts: where other ranks hold them than the rest
  double owned = 0;                       ///< elements that the rank updates
  bool reduces_microbatches = false;      ///< gradients take turns: each microbatch is reduced
  std::optional<GatheredElements> gathered = {};
  std::optional<GatheredElements> frozen = {};  ///< the weights that adapters are trained on
};
UpdatedBuffers updated_buffers(const ResolvedRun& run, int pp_rank);

/// `data` and `optimizer` of a step of a rank with such buffers, whose passes of one microbatch take `forward` and
/// `backward` seconds. A ring over dp x cp for weights that all ranks of a stage hold, and one over the ranks that have
/// the same slices of the same experts (RankRoles::gradients): where each rank has experts of its own nothing is sent.
/// What overlaps with computation shows but for the last bucket.
StepParts update_cost(const ResolvedRun& run, const Hardware& hardware, const UpdatedBuffers& buffers, double forward,
                      double backward);

}  // namespace megatron::plan
