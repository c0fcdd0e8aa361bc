#include "megatron/kernels/fp8/fp8.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "megatron/kernels/cpu/elementwise/fp8.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/phases/fp8/format.h"
#include "megatron/kernels/reference.h"

// Numbers of 8 bits in the model's type, which products on a CPU multiply. Those in 8 bits are for units that it lacks.
namespace megatron::kernels {
namespace {

constexpr std::int64_t kBlock = 8192;   // elements that a thread takes at a time
constexpr std::int64_t kColumns = 512;  // of a block of rows whose columns have scales

bool is_fine(at::ScalarType type) { return type == at::kFloat8_e4m3fn; }

/// run(begin, count) over blocks of x, each of which gives bits of a magnitude -> the largest of all.
template <class Run>
std::uint32_t largest_of_blocks(const at::Tensor& x, const Run& run) {
  const std::int64_t total = x.numel(), blocks = (total + kBlock - 1) / kBlock;
  std::vector<std::uint32_t> found(static_cast<std::size_t>(blocks));
  cpu::for_each_block(blocks, [&](std::int64_t i, int) {
    found[static_cast<std::size_t>(i)] =
        run(i * kBlock, static_cast<std::size_t>(std::min(kBlock, total - i * kBlock)));
  });
  return found.empty() ? 0 : *std::ranges::max_element(found);
}

void note(const at::Tensor& seen, std::uint32_t largest) {
  if (seen.defined()) seen.copy_(at::maximum(seen, at::scalar_tensor(std::bit_cast<float>(largest), at::kFloat)));
}

phases::PowerOfTwo scale_of(std::uint32_t amax, bool fine) {
  return phases::scale_of_block(std::min(amax, 0x7FC00000U), fine);  // any NaN is that one
}

/// Each `size` numbers of a row of `count`.
template <class T>
void round_row(const cpu::Fp8Kernels<T>& kernels, const T* x, T* to, std::int64_t count, std::int64_t size, bool fine) {
  for (std::int64_t i = 0; i < count; i += size) {
    const auto length = static_cast<std::size_t>(std::min(size, count - i));
    const auto [scale, inverse] = scale_of(kernels.largest(x + i, length), fine);
    kernels.round(x + i, to + i, length, scale, inverse, fine);
  }
}

/// Columns of `rows` rows, `stride` apart; at most kColumns.
template <class T>
void round_columns(const cpu::Fp8Kernels<T>& kernels, const T* x, T* to, std::int64_t rows, std::int64_t stride,
                   std::int64_t columns, bool fine) {
  std::array<std::uint32_t, kColumns> magnitudes;
  std::array<float, kColumns> scales, inverses;
  const auto count = static_cast<std::size_t>(columns);
  std::fill_n(magnitudes.begin(), count, 0U);
  for (std::int64_t row = 0; row < rows; ++row) kernels.enlarge(magnitudes.data(), x + row * stride, count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto [scale, inverse] = scale_of(magnitudes[i], fine);
    scales[i] = scale;
    inverses[i] = inverse;
  }
  for (std::int64_t row = 0; row < rows; ++row)
    kernels.round_each(x + row * stride, to + row * stride, count, scales.data(), inverses.data(), fine);
}

/// A block of `rows` rows, `stride` apart.
template <class T>
void round_square(const cpu::Fp8Kernels<T>& kernels, const T* x, T* to, std::int64_t rows, std::int64_t stride,
                  std::int64_t columns, bool fine) {
  std::uint32_t amax = 0;
  const auto count = static_cast<std::size_t>(columns);
  for (std::int64_t row = 0; row < rows; ++row) amax = std::max(amax, kernels.largest(x + row * stride, count));
  const auto [scale, inverse] = scale_of(amax, fine);
  for (std::int64_t row = 0; row < rows; ++row)
    kernels.round(x + row * stride, to + row * stride, count, scale, inverse, fine);
}

}  // namespace

namespace cpu {

at::Tensor fp8_magnitude(const at::Tensor& x, const at::Tensor& seen) {
  if (!fast_as(x.scalar_type(), x) || x.numel() == 0) return reference::fp8_magnitude(x, seen);
  return with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto largest = fp8_kernels<T>().largest;
    const T* const from = x.const_data_ptr<T>();
    const std::uint32_t bits =
        largest_of_blocks(x, [=](std::int64_t begin, std::size_t count) { return largest(from + begin, count); });
    note(seen, bits);
    return at::scalar_tensor(std::bit_cast<float>(bits), at::kFloat);
  });
}

Fp8Scale fp8_scale_of(const at::Tensor& amax, at::ScalarType type) { return reference::fp8_scale_of(amax, type); }

Fp8Numbers fp8_numbers(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, Fp8Wanted wanted,
                       const at::Tensor& seen) {
  return reference::fp8_numbers(x, type, scale, wanted, seen);
}

at::Tensor fp8_rounded(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, const at::Tensor& seen) {
  if (!fast_as(x.scalar_type(), x) || scale.scale.dim() > 0) return reference::fp8_rounded(x, type, scale, seen);
  at::Tensor rounded = at::empty_like(x);
  with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto kernels = fp8_kernels<T>();
    const T* const from = x.const_data_ptr<T>();
    T* const to = rounded.mutable_data_ptr<T>();
    const float by = *scale.scale.const_data_ptr<float>(), back = *scale.inverse.const_data_ptr<float>();
    const bool looks = seen.defined(), fine = is_fine(type);
    note(seen, largest_of_blocks(x, [=](std::int64_t begin, std::size_t count) {
           const std::uint32_t bits = looks ? kernels.largest(from + begin, count) : 0;
           kernels.round(from + begin, to + begin, count, by, back, fine);
           return bits;
         }));
  });
  return rounded;
}

Fp8Matrices fp8_matrices(const at::Tensor& x, at::ScalarType type, std::int64_t size, bool squares, Fp8Wanted wanted) {
  return reference::fp8_matrices(x, type, size, squares, wanted);
}

at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, at::ScalarType type, Fp8Tile tile) {
  using Along = Fp8Tile::Along;
  const bool squares = tile.along == Along::Both;
  if (!fast_as(x.scalar_type(), x) || x.numel() == 0 || x.dim() < 2 || (squares && x.dim() != 2))
    return reference::fp8_rounded_in_blocks(x, type, tile);
  at::Tensor rounded = at::empty_like(x);
  with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto kernels = fp8_kernels<T>();
    const T* const from = x.const_data_ptr<T>();
    T* const to = rounded.mutable_data_ptr<T>();
    const bool fine = is_fine(type);
    const std::int64_t last = x.size(-1), first = x.size(0), size = tile.size, total = x.numel();
    if (tile.along == Along::Last) {
      const std::int64_t together = std::max<std::int64_t>(1, kBlock / last), rows = total / last;
      for_each_block((rows + together - 1) / together, [&](std::int64_t i, int) {
        for (std::int64_t row = i * together; row < std::min(rows, (i + 1) * together); ++row)
          round_row(kernels, from + row * last, to + row * last, last, size, fine);
      });
      return;
    }
    const std::int64_t stride = total / first, wide = squares ? size : kColumns;
    const std::int64_t across = (stride + wide - 1) / wide;
    for_each_block((first + size - 1) / size * across, [&](std::int64_t i, int) {
      const std::int64_t row = i / across * size, column = i % across * wide, place = row * stride + column;
      const std::int64_t rows = std::min(size, first - row), columns = std::min(wide, stride - column);
      (squares ? round_square<T> : round_columns<T>)(kernels, from + place, to + place, rows, stride, columns, fine);
    });
  });
  return rounded;
}

}  // namespace cpu
}  // namespace megatron::kernels
