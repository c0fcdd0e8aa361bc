#include "megatron/kernels/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <stdexcept>

#include "megatron/kernels/cpu/elementwise/element_of.h"
#include "megatron/kernels/cpu/elementwise/rope.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

bool can_rotate(const at::Tensor& heads, const RopeTable& table) {
  const auto rows = [](const at::Tensor& x) {
    return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
  };
  return cpu::enabled() && heads.is_cpu() && cpu::element_of(heads) && heads.dim() <= 5 && heads.stride(-1) == 1 &&
         rows(table.cos) && rows(table.sin);
}

/// Positions one after another, the heads of each with the same cosines and sines.
void rotate_fast(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
                 std::int64_t first_position, bool inverse) {
  const cpu::ElementType type = *cpu::element_of(heads);
  const std::int64_t bytes = heads.element_size(), dims = heads.dim(), half = table.cos.size(1), s = heads.size(0);
  const auto size = [&](std::int64_t dim) { return dim < dims - 1 ? heads.size(dim) : 1; };
  const auto step = [&](std::int64_t dim) { return dim < dims - 1 ? heads.stride(dim) * bytes : 0; };
  const std::int64_t batch = size(1), groups = size(2), members = size(3);
  const at::Tensor ids_bs = position_ids.defined() ? position_ids.expand({batch, s}).contiguous() : at::Tensor();
  const std::int64_t* ids = ids_bs.defined() ? ids_bs.const_data_ptr<std::int64_t>() : nullptr;
  const float *cos = table.cos.const_data_ptr<float>(), *sin = table.sin.const_data_ptr<float>();
  auto* data = static_cast<std::byte*>(heads.mutable_data_ptr());
  const auto rotate_position = [&](std::int64_t p) {
    for (std::int64_t i = 0; i < batch * groups * members; ++i) {
      const std::int64_t b = i / (groups * members), g = i / members % groups, m = i % members;
      const std::int64_t row = (ids != nullptr ? ids[b * s + p] : first_position + p) * half;
      cpu::rotate_head(data + p * step(0) + b * step(1) + g * step(2) + m * step(3), type, cos + row, sin + row,
                       inverse ? -1.0f : 1.0f, static_cast<std::size_t>(half), table.interleaved);
    }
  };
  constexpr std::int64_t kBlock = 16;
  cpu::for_each_block((s + kBlock - 1) / kBlock, [&](std::int64_t block, int) {
    for (std::int64_t p = block * kBlock; p < std::min(s, (block + 1) * kBlock); ++p) rotate_position(p);
  });
}

}  // namespace

namespace cpu {

void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
             std::int64_t first_position, bool inverse) {
  if (!can_rotate(heads, table)) return reference::rotate_(heads, table, position_ids, first_position, inverse);
  check_rotation(heads, table, position_ids, first_position);
  if (heads.numel() > 0) rotate_fast(heads, table, position_ids, first_position, inverse);
}

}  // namespace cpu
}  // namespace megatron::kernels
