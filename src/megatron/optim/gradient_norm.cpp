#include <cmath>
#include <limits>

#include "megatron/kernels/optimizer.h"
#include "megatron/optim/optimizer.h"

namespace megatron::optim {
namespace {

// Calls visit(flat gradients) on runs of neighbouring parameters that this rank counts: its slices, and with
// `counts_whole` the parameters that every tensor-parallel rank holds whole; but no copy of what another stage counts.
// Padding between parameters is zero and does no harm.
void for_counted_runs(const parallel::ParameterStore& parameters, bool counts_whole, const auto& visit) {
  std::int64_t begin = 0, end = 0;
  const auto flush = [&] {
    if (end > begin) visit(parameters.gradients().narrow(0, begin, end - begin));
  };
  for (const auto& slot : parameters.layout().slots) {
    const auto& spec = parameters.all().at(static_cast<std::size_t>(slot.parameter))->spec;
    const bool counted = !spec.shared_copy && (counts_whole || !spec.replicated());
    if (counted && end > begin) {
      end = slot.end;
      continue;
    }
    flush();
    begin = slot.begin;
    end = counted ? slot.end : slot.begin;
  }
  flush();
}

}  // namespace

double gradient_norm(const parallel::ParameterStore& parameters, const comm::Group& model, bool counts_whole,
                     double grad_scale, NormKind kind) {
  double local = 0;
  for_counted_runs(parameters, counts_whole, [&](const at::Tensor& gradients) {
    if (kind == NormKind::L2) {
      local += kernels::sum_of_squares(gradients);
    } else {
      const double largest = kernels::max_abs(gradients);
      // A maximum over ranks may drop NaN; infinity it cannot.
      local = std::isnan(largest) ? std::numeric_limits<double>::infinity() : std::max(local, largest);
    }
  });
  const double total =
      model.all_reduce_scalars({local}, kind == NormKind::L2 ? comm::ReduceOp::Sum : comm::ReduceOp::Max)[0];
  return std::abs(grad_scale) * (kind == NormKind::L2 ? std::sqrt(total) : total);
}

}  // namespace megatron::optim
