#include "megatron/optim/model_figures.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "megatron/kernels/optimizer.h"
#include "megatron/plan/parameters/counted.h"

namespace megatron::optim {

ModelFigures::ModelFigures(const parallel::ParameterStore& parameters, const std::vector<plan::Shard>& owned,
                           const plan::Counts& counts, std::int64_t vocab)
    : parameters_(parameters) {
  for (const plan::Shard& shard : owned)
    for (const plan::ParameterRange& own : shard.parameters) {
      const auto& spec = parameters.all().at(static_cast<std::size_t>(own.parameter))->spec;
      if (!counts.counts(spec)) continue;
      for (const plan::Range& range : plan::counted_ranges(spec, counts.whole_of(spec), vocab)) {
        const plan::Range part = plan::intersection(range, own.param);
        if (part.empty()) continue;
        const plan::Range world = part.shifted(own.world.begin - own.param.begin);
        counted_.push_back({world, shard.state + world.begin - shard.world.begin});
      }
    }
}

at::Tensor ModelFigures::zero_gradients() const {
  at::Tensor zeros = at::zeros({}, parameters_.options().dtype(at::kDouble));
  for (const Counted& counted : counted_) {
    const at::Tensor gradients = parameters_.summed_gradients(counted.world);
    zeros += gradients.numel() - at::count_nonzero(gradients);
  }
  return zeros;
}

at::Tensor ModelFigures::squares_of_weights(const Optimizer& optimizer) const {
  std::vector<at::Tensor> weights;
  for (const Counted& counted : counted_) weights.push_back(optimizer.weights_of(counted.world, counted.own));
  if (weights.empty()) return at::zeros({}, parameters_.options().dtype(at::kDouble));
  return kernels::sum_of_squares(weights);
}

}  // namespace megatron::optim
