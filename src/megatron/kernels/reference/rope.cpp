#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <stdexcept>
#include <vector>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels {
namespace {

void check_positions(const at::Tensor& position_ids, std::int64_t first_position, std::int64_t count,
                     std::int64_t limit) {
  std::int64_t lowest = first_position, highest = first_position + count - 1;
  if (position_ids.defined()) {
    if (!position_ids.is_cpu()) return;  // the gather on the device checks
    lowest = position_ids.min().item<std::int64_t>();
    highest = position_ids.max().item<std::int64_t>();
  }
  if (lowest < 0 || highest >= limit) throw std::logic_error("a position that the table of rotations does not have");
}

}  // namespace

void check_rotation(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
                    std::int64_t first_position) {
  if (heads.numel() == 0) return;
  if (2 * table.cos.size(1) > heads.size(-1)) throw std::logic_error("more features to rotate than a head has");
  check_positions(position_ids, first_position, heads.size(0), table.cos.size(0));
}

namespace reference {

void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
             std::int64_t first_position, bool inverse) {
  check_rotation(heads, table, position_ids, first_position);
  if (heads.numel() == 0) return;
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

}  // namespace reference
}  // namespace megatron::kernels
