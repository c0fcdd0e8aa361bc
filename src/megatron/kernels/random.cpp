#include "megatron/kernels/random.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/random/random.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

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

/// Calls write(first, count, at) for the pieces of the runs that one thread takes at a time: `count` elements from
/// number `first` of the full tensor, which are those from `at` on of the slice.
template <class Write>
void in_pieces(const Runs& runs, const Write& write) {
  const std::int64_t blocks = (runs.length + kBlock - 1) / kBlock;
  cpu::for_each_block(runs.outer * blocks, [&](std::int64_t task, int thread) {
    const std::int64_t run = task / blocks, from = task % blocks * kBlock, to = std::min(from + kBlock, runs.length);
    write(static_cast<std::uint64_t>(runs.first + run * runs.stride + from), static_cast<std::size_t>(to - from),
          run * runs.length + from, thread);
  });
}

template <class T>
void fill_rounded(T* out, std::uint64_t key, float std, const Runs& runs) {
  std::vector<float> scratch(static_cast<std::size_t>(cpu::num_threads() * kBlock));  // a block for each thread
  in_pieces(runs, [&](std::uint64_t first, std::size_t count, std::int64_t at, int thread) {
    float* drawn = scratch.data() + thread * kBlock;
    cpu::normal_run(key, std, first, count, drawn);
    std::transform(drawn, drawn + count, out + at, [](float x) { return static_cast<T>(x); });
  });
}

}  // namespace

void fill_normal_(const at::Tensor& out, std::uint64_t key, double std, const std::vector<std::int64_t>& full_shape,
                  int dim, std::int64_t offset) {
  const c10::NoGradGuard no_grad;
  // Always drawn in float32 on the CPU: the same weights on every device, in float64 the float32 values exactly, in
  // bf16 and fp16 those rounded to nearest.
  const bool direct = out.is_cpu() && out.is_contiguous();
  const Runs runs = runs_of(out, full_shape, dim, offset);
  const auto deviation = static_cast<float>(std);
  if (direct && out.scalar_type() == at::kBFloat16) {
    return fill_rounded(out.mutable_data_ptr<c10::BFloat16>(), key, deviation, runs);
  }
  if (direct && out.scalar_type() == at::kHalf) {
    return fill_rounded(out.mutable_data_ptr<c10::Half>(), key, deviation, runs);
  }
  const bool in_place = direct && out.scalar_type() == at::kFloat;
  at::Tensor buffer = in_place ? out : at::empty(out.sizes(), at::TensorOptions().dtype(at::kFloat));
  float* data = buffer.mutable_data_ptr<float>();
  in_pieces(runs, [&](std::uint64_t first, std::size_t count, std::int64_t at, int) {
    cpu::normal_run(key, deviation, first, count, data + at);
  });
  if (!in_place) out.copy_(buffer);
}

void fill_uniform_(const at::Tensor& out, std::uint64_t key, double bound, const std::vector<std::int64_t>& full_shape,
                   int dim, std::int64_t offset) {
  const c10::NoGradGuard no_grad;
  const Runs runs = runs_of(out, full_shape, dim, offset);
  const at::Tensor drawn = at::empty(out.sizes(), at::TensorOptions().dtype(at::kFloat));
  auto* const data = drawn.mutable_data_ptr<float>();
  std::vector<std::uint32_t> scratch(static_cast<std::size_t>(cpu::num_threads() * kBlock));  // a block for each thread
  in_pieces(runs, [&](std::uint64_t first, std::size_t count, std::int64_t at, int thread) {
    std::uint32_t* const words = scratch.data() + thread * kBlock;
    cpu::random_words(key, 0, first, count, words);
    std::transform(words, words + count, data + at, [bound](std::uint32_t word) {
      return static_cast<float>(bound * ((static_cast<double>(word >> 8) + 0.5) * 0x1p-23 - 1));
    });
  });
  out.copy_(drawn);
}

}  // namespace megatron::kernels
