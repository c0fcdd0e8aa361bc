#include "megatron/optim/gradient_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "megatron/kernels/optimizer.h"
#include "megatron/plan/parameters/counted.h"

namespace megatron::optim {
namespace {

/// In blocks that one thread of a CPU adds up: their boundaries do not depend on the number of threads. `scale`: a
/// scalar, or undefined.
at::Tensor sum_of_powers(const at::Tensor& x, double order, const at::Tensor& scale) {
  const std::int64_t block = x.is_cpu() ? 1 << 14 : 1 << 22;
  at::Tensor sum = at::zeros({}, x.options().dtype(at::kDouble));
  for (std::int64_t begin = 0; begin < x.numel(); begin += block) {
    const at::Tensor size = x.narrow(0, begin, std::min(block, x.numel() - begin)).to(at::kDouble).abs();
    sum += (scale.defined() ? size / scale : size).pow(order).sum();
  }
  return sum;
}

}  // namespace

GradientNorm::GradientNorm(const parallel::ParameterStore& parameters, const std::vector<plan::Shard>& owned,
                           const plan::Counts& counts)
    : parameters_(parameters) {
  for (const plan::Shard& shard : owned) {
    bool joins = false;  // whether what comes next follows the last range, with nothing uncounted in between
    for (const plan::ParameterRange& own : shard.parameters) {
      const auto& spec = parameters.all().at(static_cast<std::size_t>(own.parameter))->spec;
      if (!counts.counts(spec)) {
        joins = false;
        continue;
      }
      std::int64_t at = own.param.begin;
      for (const plan::Range& range : plan::counted_ranges(spec, counts.whole_of(spec))) {
        const plan::Range part = plan::intersection(range, own.param);
        if (part.empty()) continue;
        const plan::Range world = part.shifted(own.world.begin - own.param.begin);
        joins = joins && part.begin == at;
        if (joins)
          counted_.back().end = world.end;
        else
          counted_.push_back(world);
        joins = true;
        at = part.end;
      }
      joins = joins && at == own.param.end;
    }
  }
}

at::Tensor GradientNorm::part(NormOrder order, const at::Tensor& scale) const {
  std::vector<at::Tensor> gradients;
  for (const plan::Range& range : counted_) gradients.push_back(parameters_.summed_gradients(range));
  if (gradients.empty()) return at::zeros({}, parameters_.options().dtype(at::kDouble));
  // A maximum over ranks may drop NaN; infinity it cannot.
  if (order == kInf) return kernels::max_abs(gradients).nan_to_num(/*nan=*/kInf, /*posinf=*/kInf);
  if (order == kL2 && !scale.defined()) return kernels::sum_of_squares(gradients);
  at::Tensor sum = at::zeros({}, gradients.front().options().dtype(at::kDouble));
  for (const at::Tensor& each : gradients) sum += sum_of_powers(each, order, scale);
  return sum;
}

}  // namespace megatron::optim
