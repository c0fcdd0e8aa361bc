#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megatron/optim/optimizer.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/counted.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::optim {

/// This rank's part of figures over the whole model, to be added up over the ranks. Each element of the model counts
/// once over all ranks, and padding not at all (plan::counted_ranges()): the sums are the same in every layout.
class ModelFigures {
 public:
  /// `owned`: see GradientReducer. `counts`: what this rank counts. `vocab`: tokens.
  ModelFigures(const parallel::ParameterStore& parameters, const std::vector<plan::Shard>& owned,
               const plan::Counts& counts, std::int64_t vocab);

  // Float64 scalars on the parameters' device, for which the host does not wait.
  /// Elements of the gradient that are exactly zero, once the gradients that this rank owns are whole.
  at::Tensor zero_gradients() const;
  /// Sum of squares of the weights: of the masters where `optimizer` has some.
  at::Tensor squares_of_weights(const Optimizer& optimizer) const;

 private:
  struct Counted {
    plan::Range world;  ///< in the store's buffers
    std::int64_t own;   ///< where it begins in the masters
  };
  const parallel::ParameterStore& parameters_;
  std::vector<Counted> counted_;
};

}  // namespace megatron::optim
