#include "megatron/optim/gradient_norm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/kernels/optimizer.h"
#include "megatron/plan/parameters/counted.h"

namespace megatron::optim {
namespace {

/// In blocks that one thread adds up: their boundaries do not depend on the number of threads.
double sum_of_powers(const at::Tensor& x, double order, double scale) {
  constexpr std::int64_t kBlock = 1 << 14;
  double sum = 0;
  for (std::int64_t begin = 0; begin < x.numel(); begin += kBlock)
    sum += x.narrow(0, begin, std::min(kBlock, x.numel() - begin))
               .to(at::kDouble)
               .abs()
               .div(scale)
               .pow(order)
               .sum()
               .item<double>();
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
      for (const plan::Range& range : plan::counted_ranges(spec, counts.whole)) {
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

double GradientNorm::part(NormOrder order, double scale) const {
  double sum = 0, most = 0;
  for (const plan::Range& range : counted_) {
    const auto gradients = parameters_.summed_gradients(range);
    if (order != kInf) {
      sum += order == kL2 && scale == 1 ? kernels::sum_of_squares(gradients) : sum_of_powers(gradients, order, scale);
      continue;
    }
    const double largest = kernels::max_abs(gradients);
    // A maximum over ranks may drop NaN; infinity it cannot.
    most = std::isnan(largest) ? std::numeric_limits<double>::infinity() : std::max(most, largest);
  }
  return order == kInf ? most : sum;
}

}  // namespace megatron::optim
