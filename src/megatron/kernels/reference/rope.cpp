#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <vector>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {

void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
             std::int64_t first_position, bool inverse) {
  const std::int64_t s = heads.size(0), half = table.cos.size(1);
  const at::Tensor positions_sb = position_ids.defined()
                                      ? position_ids.to(heads.device()).t()
                                      : (at::arange(s, heads.options().dtype(at::kLong)) + first_position).unsqueeze(1);
  std::vector<std::int64_t> shape(static_cast<std::size_t>(heads.dim()), 1);  // [s, b or 1, 1 .., half]
  shape[0] = s;
  shape[1] = positions_sb.size(1);
  shape.back() = half;
  const auto of_positions = [&](const at::Tensor& rows) {
    return rows.index_select(0, positions_sb.reshape({-1})).view(shape).to(compute_type(heads));
  };
  const at::Tensor cos = of_positions(table.cos), sin = inverse ? -of_positions(table.sin) : of_positions(table.sin);
  const auto part = [&](std::int64_t i) {
    return table.interleaved ? heads.slice(-1, i, 2 * half, 2) : heads.narrow(-1, i * half, half);
  };
  const at::Tensor x = up(part(0)), y = up(part(1));
  const at::Tensor new_x = x * cos - y * sin, new_y = y * cos + x * sin;
  part(0).copy_(new_x);
  part(1).copy_(new_y);
}

}  // namespace megatron::kernels::reference
