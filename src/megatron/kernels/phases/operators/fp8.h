#pragma once
#include <ATen/ops/zeros.h>

#include "megatron/kernels/phases/fp8/magnitudes.h"
#include "megatron/kernels/phases/fp8/tiles.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// What makes operands of 8 bits (kernels/fp8/fp8.h).
template <class Driver>
struct Fp8Operators {
  static at::Tensor fp8_magnitude(const at::Tensor& x, const at::Tensor& seen) {
    if (!takes(x) || !notes(x, seen)) return reference::fp8_magnitude(x, seen);
    at::Tensor largest = at::empty({}, x.options().dtype(at::kFloat));
    with_type(x.scalar_type(), [&](auto type) {
      using Kernel = Fp8Maxima<decltype(type)>;
      const std::int64_t blocks = Kernel::blocks(x.numel());
      const at::Tensor parts = at::empty({blocks}, x.options().dtype(at::kInt));
      Driver::template launch<Kernel>(
          {.x = const_pointer<decltype(type)>(x), .out = pointer<std::uint32_t>(parts), .size = x.numel()}, blocks);
      fold(parts, largest, seen);
    });
    return largest;
  }

  static Fp8Scale fp8_scale_of(const at::Tensor& amax, at::ScalarType type) {
    if (amax.scalar_type() != at::kFloat || !amax.is_contiguous() || amax.numel() == 0)
      return reference::fp8_scale_of(amax, type);
    Fp8Scale scale{at::empty_like(amax), at::empty_like(amax)};
    Driver::template launch<Fp8ScaleOf>({.amax = const_pointer<float>(amax),
                                         .scale = pointer<float>(scale.scale),
                                         .inverse = pointer<float>(scale.inverse),
                                         .size = amax.numel(),
                                         .fine = is_fine(type)},
                                        blocks_for<Fp8ScaleOf>(amax.numel()));
    return scale;
  }

  static Fp8Numbers fp8_numbers(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, Fp8Wanted wanted,
                                const at::Tensor& seen) {
    if (!takes(x) || !notes(x, seen) || !is_of_all(x, scale) || !(wanted.rows || wanted.turned))
      return reference::fp8_numbers(x, type, scale, wanted, seen);
    const std::int64_t last = x.size(-1), rows = x.numel() / last;
    Fp8Numbers numbers{wanted.rows ? at::empty(x.sizes(), x.options().dtype(type)) : at::Tensor(),
                       wanted.turned ? at::empty({last, rows}, x.options().dtype(type)) : at::Tensor()};
    by_one_scale(x, type, scale, seen, [&]<class T>(auto& args, T) {
      args.rows = pointer<std::uint8_t>(numbers.rows);
      args.turned = pointer<std::uint8_t>(numbers.turned);
    });
    return numbers;
  }
  static at::Tensor fp8_rounded(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale,
                                const at::Tensor& seen) {
    if (!takes(x) || !notes(x, seen) || !is_of_all(x, scale)) return reference::fp8_rounded(x, type, scale, seen);
    at::Tensor rounded = at::empty_like(x);
    by_one_scale(x, type, scale, seen, [&]<class T>(auto& args, T) { args.rounded = pointer<T>(rounded); });
    return rounded;
  }

  static Fp8Matrices fp8_matrices(const at::Tensor& x, at::ScalarType type, std::int64_t size, bool squares,
                                  Fp8Wanted wanted) {
    check_fp8_matrices(x, size, squares, wanted);
    if (!takes(x) || !has_tiles(size, squares) || !(wanted.rows || wanted.turned))
      return reference::fp8_matrices(x, type, size, squares, wanted);
    const std::int64_t last = x.size(-1), rows = x.numel() / last;
    const auto tile = [&](Fp8Tile::Along along) { return Fp8Tile{squares ? Fp8Tile::Along::Both : along, size}; };
    Fp8Matrices all;
    Fp8Inverses of_rows, of_turned;
    if (wanted.rows) all.rows = matrix_like(x, {rows, last}, type, tile(Fp8Tile::Along::Last), of_rows);
    if (wanted.turned) all.turned = matrix_like(x, {last, rows}, type, tile(Fp8Tile::Along::First), of_turned);
    in_tiles(x, type, size, [&]<class T>(auto& args, T) {
      args.first = x.size(0);
      args.samples = rows / args.first;
      args.sharing = squares ? Fp8Sharing::Square : Fp8Sharing::Line;
      args.rows = pointer<std::uint8_t>(all.rows.numbers);
      args.turned = pointer<std::uint8_t>(all.turned.numbers);
      args.of_rows = of_rows;
      args.of_turned = of_turned;
    });
    return all;
  }
  static at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, at::ScalarType type, Fp8Tile tile) {
    const bool squares = tile.along == Fp8Tile::Along::Both;
    if (!takes(x) || !has_tiles(tile.size, squares) || x.dim() < 2 || (squares && x.dim() != 2))
      return reference::fp8_rounded_in_blocks(x, type, tile);
    at::Tensor rounded = at::empty_like(x);
    in_tiles(x, type, tile.size, [&]<class T>(auto& args, T) {
      args.first = x.size(0);
      args.samples = x.numel() / (args.first * args.last);
      args.sharing = squares ? Fp8Sharing::Square : Fp8Sharing::Line;
      args.rounded = pointer<T>(rounded);
      args.rounded_by_columns = tile.along == Fp8Tile::Along::First;
    });
    return rounded;
  }

 private:
  static constexpr std::int64_t kLarge = 128, kSmall = 32;  ///< what blocks may be

  static bool is_fine(at::ScalarType type) { return type == at::kFloat8_e4m3fn; }
  static bool has_tiles(std::int64_t size, bool squares) { return size == kLarge || (size == kSmall && !squares); }
  static bool notes(const at::Tensor& x, const at::Tensor& seen) {
    return !seen.defined() || (of_type(x, seen, at::kFloat) && seen.numel() == 1);
  }
  /// Whether `scale` is two numbers, of which the host or x's device has the first and the device the other.
  static bool is_of_all(const at::Tensor& x, const Fp8Scale& scale) {
    const auto known = [&](const at::Tensor& t) { return t.scalar_type() == at::kFloat && t.dim() == 0; };
    return known(scale.scale) && (scale.scale.is_cpu() || scale.scale.device() == x.device()) && known(scale.inverse) &&
           scale.inverse.device() == x.device();
  }

  /// The larger of `parts`: of magnitudes, by their bits.
  static void fold(const at::Tensor& parts, const at::Tensor& largest, const at::Tensor& seen) {
    Driver::template launch<Fp8Largest>({.parts = const_pointer<std::uint32_t>(parts),
                                         .count = parts.numel(),
                                         .largest = pointer<std::uint32_t>(largest),
                                         .seen = pointer<std::uint32_t>(seen)},
                                        1);
  }

  /// Launches tiles of x by blocks of `size`, after `set` has said what is wanted of them.
  template <class Set>
  static void in_tiles(const at::Tensor& x, at::ScalarType type, std::int64_t size, const Set& set) {
    with_type(x.scalar_type(), [&](auto of_x) {
      using T = decltype(of_x);
      const auto launch = [&]<class Kernel>(Kernel) {
        typename Kernel::Args args;
        args.x = const_pointer<T>(x);
        args.last = x.size(-1);
        args.fine = is_fine(type);
        set(args, T());
        args.tiles = Divisor((args.last + Kernel::kColumns - 1) / Kernel::kColumns);
        args.of_samples = Divisor(args.samples);
        Driver::template launch<Kernel>(args, Kernel::blocks(args));
      };
      size == kSmall ? launch(Fp8Tiles<T, kSmall>()) : launch(Fp8Tiles<T, kLarge>());
    });
  }
  template <class Set>
  static void by_one_scale(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, const at::Tensor& seen,
                           const Set& set) {
    at::Tensor maxima;
    in_tiles(x, type, kLarge, [&]<class T>(auto& args, T of_x) {
      args.first = x.numel() / args.last;
      if (scale.scale.is_cpu()) {
        args.scale = *scale.scale.const_data_ptr<float>();
        args.inverse = 1 / args.scale;
      } else {
        args.scale_at = const_pointer<float>(scale.scale);
        args.inverse_at = const_pointer<float>(scale.inverse);
      }
      if (seen.defined()) {
        maxima = at::empty({(args.first + kLarge - 1) / kLarge * ((args.last + kLarge - 1) / kLarge)},
                           x.options().dtype(at::kInt));
        args.maxima = pointer<std::uint32_t>(maxima);
      }
      set(args, of_x);
    });
    if (seen.defined()) fold(maxima, {}, seen);
  }

  /// An operand's memory, and where a kernel writes the inverses of its scales.
  static Fp8Matrix matrix_like(const at::Tensor& x, at::IntArrayRef shape, at::ScalarType type, Fp8Tile tile,
                               Fp8Inverses& inverses) {
    const std::int64_t outer = shape[0], blocks = shape[1] / tile.size;
    const auto up = [](std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; };
    const auto made = [&](at::IntArrayRef sizes, at::ScalarType of, bool filled) {
      const auto options = x.options().dtype(of);
      return filled ? at::empty(sizes, options) : at::zeros(sizes, options);
    };
    Fp8Matrix matrix{at::empty(shape, x.options().dtype(type)), {}, tile};
    const std::int64_t columns = up(blocks, 4);
    if (tile.size == kSmall) {
      const std::int64_t rows = up(outer, 128);
      matrix.inverse = made({rows / 128, columns / 4, 32, 4, 4}, at::kByte, rows == outer && columns == blocks)
                           .view(at::kFloat8_e8m0fnu);
      inverses = {.data = matrix.inverse.mutable_data_ptr(), .tiles = columns / 4};
    } else if (tile.along == Fp8Tile::Along::Both) {
      matrix.inverse = made({outer / tile.size, columns}, at::kFloat, columns == blocks).t();
      inverses = {.data = matrix.inverse.mutable_data_ptr(), .outer_stride = columns, .block_stride = 1};
    } else {
      matrix.inverse = made({blocks, outer}, at::kFloat, true).t();
      inverses = {.data = matrix.inverse.mutable_data_ptr(), .outer_stride = 1, .block_stride = outer};
    }
    return matrix;
  }
};

}  // namespace megatron::kernels::phases
