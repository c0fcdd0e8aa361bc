#include "megatron/kernels/random.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/random.h"

namespace megatron::kernels {
namespace {

/// A contiguous slice of a contiguous tensor as `outer` runs of `length` elements, `stride` apart in the full tensor.
struct Runs {
  std::int64_t outer = 1, length = 1, stride = 0, first = 0;
};

Runs runs_of(const at::Tensor& out, const std::vector<std::int64_t>& full_shape, int dim, std::int64_t offset) {
  if (dim < 0) return {.length = out.numel()};
  const auto axis = full_shape.begin() + dim;
  const auto product = [](auto from, auto to) {
    return std::accumulate(from, to, std::int64_t{1}, std::multiplies<>{});
  };
  const std::int64_t inner = product(axis + 1, full_shape.end());
  return {.outer = product(full_shape.begin(), axis),
          .length = out.size(dim) * inner,
          .stride = *axis * inner,
          .first = offset * inner};
}

}  // namespace

void fill_normal_(const at::Tensor& out, std::uint64_t key, double std, const std::vector<std::int64_t>& full_shape,
                  int dim, std::int64_t offset) {
  const c10::NoGradGuard no_grad;
  // Always made in float32 on the CPU: the same weights on every device, and in float64 the float32 values exactly.
  const bool direct = out.is_cpu() && out.scalar_type() == at::kFloat && out.is_contiguous();
  at::Tensor buffer = direct ? out : at::empty(out.sizes(), at::TensorOptions().dtype(at::kFloat));
  float* data = buffer.mutable_data_ptr<float>();
  const Runs runs = runs_of(out, full_shape, dim, offset);
  constexpr std::int64_t kBlock = 1 << 16;
  const std::int64_t blocks = (runs.length + kBlock - 1) / kBlock;
  cpu::for_each_block(runs.outer * blocks, [&](std::int64_t task, int) {
    const std::int64_t run = task / blocks, from = task % blocks * kBlock, to = std::min(from + kBlock, runs.length);
    cpu::normal_run(key, static_cast<float>(std), static_cast<std::uint64_t>(runs.first + run * runs.stride + from),
                    static_cast<std::size_t>(to - from), data + run * runs.length + from);
  });
  if (!direct) out.copy_(buffer);
}

}  // namespace megatron::kernels
