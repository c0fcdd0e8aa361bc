#include "megatron/parallel/magnitude.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "megatron/parallel/backward.h"

namespace megatron::parallel {

at::Tensor rows_of(const at::Tensor& weight, const plan::ProjectionSlice& part) {
  return weight.view({part.groups, part.group_outputs, weight.size(1)})
      .narrow(1, part.offset, part.length)
      .reshape({part.outputs(), weight.size(1)})
      .contiguous();
}

at::Tensor adapted_norms(const at::Tensor& weight, const plan::ProjectionSlice& part, const at::Tensor& a,
                         const at::Tensor& b, double scale, const comm::Group& inputs) {
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 20;
  return without_autograd([&] {
    const at::ScalarType type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor groups = weight.view({part.groups, part.group_outputs, weight.size(1)}), wide_a = a.to(type),
                     squares = at::empty({part.outputs()}, weight.options().dtype(type));
    const std::int64_t step = std::max<std::int64_t>(1, kMaxElements / weight.size(1));
    for (std::int64_t group = 0; group < part.groups; ++group)
      for (std::int64_t row = 0; row < part.length; row += step) {
        const std::int64_t rows = std::min(step, part.length - row), first = group * part.length + row;
        const at::Tensor w = groups.select(0, group).narrow(0, part.offset + row, rows).to(type);
        squares.narrow(0, first, rows)
            .copy_(at::addmm(w, b.narrow(0, first, rows).to(type), wide_a, 1, scale).square().sum(1));
      }
    inputs.all_reduce(squares);
    return squares.sqrt();
  });
}

at::Tensor magnitude_factor(const at::Tensor& magnitude, const at::Tensor& norms) {
  return magnitude.to(norms.scalar_type()).div(norms.masked_fill(norms.eq(0), 1));
}

}  // namespace megatron::parallel
