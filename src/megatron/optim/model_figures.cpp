#include "megatron/optim/model_figures.h"

#include <ATen/ops/count_nonzero.h>

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
      for (const plan::Range& range : plan::counted_ranges(spec, counts.whole, vocab)) {
        const plan::Range part = plan::intersection(range, own.param);
        if (part.empty()) continue;
        const plan::Range world = part.shifted(own.world.begin - own.param.begin);
        counted_.push_back({world, shard.state + world.begin - shard.world.begin});
      }
    }
}

std::int64_t ModelFigures::zero_gradients() const {
  std::int64_t zeros = 0;
  for (const Counted& counted : counted_) {
    const at::Tensor gradients = parameters_.summed_gradients(counted.world);
    zeros += gradients.numel() - at::count_nonzero(gradients).item<std::int64_t>();
  }
  return zeros;
}

double ModelFigures::squares_of_weights(const Optimizer& optimizer) const {
  double sum = 0;
  for (const Counted& counted : counted_)
    sum += kernels::sum_of_squares(optimizer.weights_of(counted.world, counted.own));
  return sum;
}

}  // namespace megatron::optim
