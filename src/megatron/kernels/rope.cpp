#include "megatron/kernels/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <stdexcept>

#include "megatron/kernels/cpu/element_of.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/rope.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

/// Radians per position of pair i.
double frequency(const RopeOptions& options, std::int64_t i) {
  const double plain = std::pow(options.base, -2.0 * static_cast<double>(i) / static_cast<double>(options.rotary_dim));
  const RopeScaling& scaling = options.scaling;
  if (scaling.factor == 1) return plain;
  const double turns = static_cast<double>(scaling.original_positions) * plain / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return plain / scaling.factor;
  if (turns > scaling.high_freq_factor) return plain;
  const double kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * plain / scaling.factor + kept * plain;
}

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

bool fast(const at::Tensor& heads, const RopeTable& table) {
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

RopeTable rope_table(const RopeOptions& options, std::int64_t positions, at::ScalarType dtype, at::Device device) {
  if (options.rotary_dim <= 0 || options.rotary_dim % 2 != 0)
    throw std::logic_error("rotary positions need an even number of features");
  const std::int64_t half = options.rotary_dim / 2;
  const at::Tensor cos = at::empty({positions, half}, at::kDouble), sin = at::empty({positions, half}, at::kDouble);
  double *c = cos.mutable_data_ptr<double>(), *s = sin.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < half; ++i) {
    const double radians = frequency(options, i);
    for (std::int64_t p = 0; p < positions; ++p) {
      c[p * half + i] = std::cos(static_cast<double>(p) * radians);
      s[p * half + i] = std::sin(static_cast<double>(p) * radians);
    }
  }
  const at::ScalarType kept = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {cos.to(device, kept), sin.to(device, kept), options.interleaved};
}

void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
             std::int64_t first_position, bool inverse) {
  const c10::NoGradGuard no_grad;
  if (heads.numel() == 0) return;
  if (2 * table.cos.size(1) > heads.size(-1)) throw std::logic_error("more features to rotate than a head has");
  check_positions(position_ids, first_position, heads.size(0), table.cos.size(0));
  if (fast(heads, table)) return rotate_fast(heads, table, position_ids, first_position, inverse);
  reference::rotate_(heads, table, position_ids, first_position, inverse);
}

}  // namespace megatron::kernels
