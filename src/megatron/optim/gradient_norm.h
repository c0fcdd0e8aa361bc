#pragma once
#include <ATen/core/Tensor.h>

#include <limits>
#include <vector>

#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/counted.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::optim {

/// The p of a norm (sum of |x|^p)^(1/p); infinite: the largest magnitude.
using NormOrder = double;
inline constexpr NormOrder kL2 = 2, kInf = std::numeric_limits<double>::infinity();

/// This rank's part of the norm of the whole model's gradient, once the gradients that it owns are whole
/// (GradientReducer, SharedGradients). Over all ranks every parameter counts once (plan::counted_ranges()).
class GradientNorm {
 public:
  /// `owned`: see GradientReducer. `counts`: what this rank counts.
  GradientNorm(const parallel::ParameterStore& parameters, const std::vector<plan::Shard>& owned,
               const plan::Counts& counts);

  /// The sum of |x / scale|^order, to be added up over the ranks; of order infinity the largest magnitude: a float64
  /// scalar on the parameters' device, for which the host does not wait. Not finite where any gradient that counts is
  /// not. `scale`, one there (undefined: 1): about the largest magnitude keeps powers above 2 in range.
  at::Tensor part(NormOrder order, const at::Tensor& scale = {}) const;

 private:
  const parallel::ParameterStore& parameters_;
  std::vector<plan::Range> counted_;  ///< of the gradient buffer; gaps between parameters are zero and do no harm
};

}  // namespace megatron::optim
