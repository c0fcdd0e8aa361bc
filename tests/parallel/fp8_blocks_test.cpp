#include "megatron/parallel/fp8/blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/fp8.h"
#include "megatron/parallel/linear.h"
#include "tests/parallel/fp8_numbers.h"
#include "tests/testing/tensors.h"

// Scales of blocks, against loops over the numbers of each block.
namespace megatron::parallel {
namespace {

using plan::Fp8Scales;
using plan::Fp8Type;
using Along = Fp8Tile::Along;
using kernels::Fp8Blocks;
using testing::fp8_in_blocks;
using testing::fp8_rounded_in_blocks;
using testing::list_of;
using testing::magnitudes_of;
using testing::make_parameter;
using testing::nearest;
using testing::tensor_of;

/// x [s, b, k] or [n, k] as float64, its blocks rounded by the definitions: of `s`, `b` and `k` a block has so many.
at::Tensor rounded_by_loops(const at::Tensor& x, Fp8Type type, std::int64_t s, std::int64_t b, std::int64_t k) {
  const at::Tensor wide = x.to(at::kDouble).reshape({x.size(0), -1, x.size(-1)}).contiguous();
  const at::Tensor result = at::zeros_like(wide);
  const std::vector<double> magnitudes = magnitudes_of(type);
  const auto from = wide.accessor<double, 3>();
  auto to = result.accessor<double, 3>();
  const auto size = [&](int dimension) { return from.size(dimension); };
  for (std::int64_t s0 = 0; s0 < size(0); s0 += s)
    for (std::int64_t b0 = 0; b0 < size(1); b0 += b)
      for (std::int64_t k0 = 0; k0 < size(2); k0 += k) {
        const auto for_each = [&](const auto& use) {
          for (std::int64_t i = s0; i < std::min(s0 + s, size(0)); ++i)
            for (std::int64_t j = b0; j < std::min(b0 + b, size(1)); ++j)
              for (std::int64_t l = k0; l < std::min(k0 + k, size(2)); ++l) use(i, j, l);
        };
        double largest = 0;
        for_each([&](auto i, auto j, auto l) { largest = std::max(largest, std::abs(from[i][j][l])); });
        const double scale = plan::fp8_scale(static_cast<float>(largest), type, 0, 1);
        for_each([&](auto i, auto j, auto l) { to[i][j][l] = nearest(magnitudes, from[i][j][l] * scale) / scale; });
      }
  return result.view(x.sizes());
}

at::Tensor by_features(const at::Tensor& x, Fp8Type type, std::int64_t size) {
  return rounded_by_loops(x, type, 1, 1, size);
}
at::Tensor by_tokens(const at::Tensor& x, Fp8Type type, std::int64_t size) {
  return rounded_by_loops(x, type, size, 1, 1);
}
at::Tensor by_squares(const at::Tensor& w) { return rounded_by_loops(w, Fp8Type::E4M3, 128, 1, 128); }

/// Numbers of float32, through which float64 is rounded, of magnitudes that differ from block to block.
at::Tensor uneven(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kFloat).mul(at::randn(sizes, at::kFloat).mul(4).exp()).to(at::kDouble);
}

TEST(Fp8Blocks, HaveTheScaleOfTheirLargestInEveryTypeOfAModel) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})
    for (const auto type : {Fp8Type::E4M3, Fp8Type::E5M2})
      for (const std::int64_t size : {128, 256, 40, 130}) {  // whole blocks, and a smaller last one
        const at::Tensor x = uneven({size, 2, size}).clamp(-6e4, 6e4).to(dtype);
        for (const std::int64_t block : {plan::kFp8Block, plan::kMxBlock}) {
          const at::Tensor features = fp8_rounded_in_blocks(x, type, {Along::Last, block});
          EXPECT_EQ(features.scalar_type(), dtype);
          EXPECT_TRUE(at::equal(features.to(at::kDouble), by_features(x, type, block))) << dtype << size;
          const at::Tensor tokens = fp8_rounded_in_blocks(x, type, {Along::First, block});
          EXPECT_TRUE(at::equal(tokens.to(at::kDouble), by_tokens(x, type, block))) << dtype << size;
        }
      }
  const at::Tensor w = uneven({130, 257}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(fp8_rounded_in_blocks(w, Fp8Type::E4M3, {Along::Both}).to(at::kDouble), by_squares(w)));
}

TEST(Fp8Blocks, AreZeroWhereAllIs) {
  for (const Along along : {Along::Last, Along::First, Along::Both})
    for (const std::int64_t size : {plan::kFp8Block, plan::kMxBlock}) {
      const at::Tensor zeros = at::zeros({128, 130});
      EXPECT_TRUE(at::equal(fp8_rounded_in_blocks(zeros, Fp8Type::E4M3, {along, size}), zeros));
    }
}

// A clamped infinity would hide what has overflowed: the whole block says so, and no other.
TEST(Fp8Blocks, SayWhereANumberIsNotFinite) {
  for (const double number : {std::numeric_limits<double>::infinity(), testing::kNaN})
    for (const std::int64_t size : {plan::kFp8Block, plan::kMxBlock}) {
      at::Tensor x = at::randn({3, 256});
      x[1][200] = number;
      const at::Tensor rounded = fp8_rounded_in_blocks(x, Fp8Type::E4M3, {Along::Last, size});
      EXPECT_EQ(rounded.isnan().sum().item<std::int64_t>(), size);
      EXPECT_TRUE(rounded[1].narrow(0, 200 / size * size, size).isnan().all().item<bool>());
      const Fp8Blocks blocks = fp8_in_blocks(x, Fp8Type::E4M3, {Along::Last, size});
      EXPECT_TRUE(blocks.inverse[1][200 / size].isnan().item<bool>());
    }
}

/// A layer of 256 -> 384 and what its products are: of the numbers that the loops give.
struct Reference {
  explicit Reference(Fp8Scales scales, Fp8Type gradients = Fp8Type::E5M2)
      : recipe{.gradients = gradients, .scales = scales} {}

  plan::Fp8Recipe recipe;
  at::Tensor x = uneven({130, 2, 256}), w = uneven({384, 256}), dy = uneven({130, 2, 384});

  static at::Tensor rows(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }
  /// Of an input, a weight or its gradient, by a layer with this recipe.
  at::Tensor output(const at::Tensor& input, const at::Tensor& weight) const {
    const at::Tensor rounded = squares() ? by_squares(weight) : by_features(weight, Fp8Type::E4M3, recipe.block());
    return by_features(input, Fp8Type::E4M3, recipe.block()).matmul(rounded.t());
  }
  at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) const {
    const at::Tensor rounded = squares() ? by_squares(weight) : by_tokens(weight, Fp8Type::E4M3, recipe.block());
    return by_features(gradient, recipe.gradients, recipe.block()).matmul(rounded);
  }
  at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input) const {
    const at::Tensor rounded = by_tokens(gradient, recipe.gradients, recipe.block());
    return rows(rounded).t().matmul(rows(by_tokens(input, Fp8Type::E4M3, recipe.block())));
  }
  bool squares() const { return recipe.scales == Fp8Scales::Block; }
  Fp8ProductsPtr products() const {
    return std::make_shared<const Fp8Products>(
        std::make_shared<Fp8Scaling>(recipe, std::vector<std::string>{"other", "layer"}, at::kCPU), "layer");
  }
};

class Fp8BlocksTp : public ::testing::TestWithParam<std::tuple<int, Fp8Scales, Fp8Type>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Fp8BlocksTp,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(Fp8Scales::Block, Fp8Scales::Mx),
                                            ::testing::Values(Fp8Type::E4M3, Fp8Type::E5M2)));

TEST_P(Fp8BlocksTp, ColumnAndRowParallelLayersMultiplyTheRoundedNumbers) {
  const auto [ranks, scales, gradients] = GetParam();
  const Reference reference(scales, gradients);
  const at::Tensor y = reference.output(reference.x, reference.w);
  const at::Tensor dx = reference.input_gradient(reference.dy, reference.w);
  const at::Tensor dw = reference.weight_gradient(reference.dy, reference.x);
  // Of a column-parallel layer 192 outputs each would cut blocks: 384 rows are 3 blocks. It has 256, and 384 inputs.
  const at::Tensor turned = reference.w.t().contiguous();
  const at::Tensor turned_y = reference.output(reference.dy, turned);
  const at::Tensor turned_dx = reference.input_gradient(reference.x, turned);
  const at::Tensor turned_dw = reference.weight_gradient(reference.x, reference.dy);
  comm::run_ranks(ranks, [&](comm::Group tp) {
    const auto own = [&](const at::Tensor& t, int dim) {
      const std::int64_t size = t.size(dim) / tp.size();
      return t.narrow(dim, size * tp.rank(), size).contiguous();
    };
    for (const bool split : {false, true}) {  // along the sequence
      const auto positions = [&](const at::Tensor& t) { return split ? own(t, 0) : t; };
      const auto w_row = make_parameter("w", reference.w, 1, tp.size(), tp.rank());
      RowParallelLinear row(w_row, nullptr, tp, {.sequence_parallel = split});
      row.compute_in(reference.products());
      const auto features = own(reference.x, 2).clone().requires_grad_(true);
      const auto out = row.forward(features);
      EXPECT_NEAR_TENSOR(out, positions(y), 1e-13);
      out.backward(positions(reference.dy));
      EXPECT_NEAR_TENSOR(features.grad(), own(dx, 2), 1e-13);
      EXPECT_NEAR_TENSOR(w_row->grad, own(dw, 1), 1e-13);

      const auto w_column = make_parameter("w", turned, 0, tp.size(), tp.rank());
      ColumnParallelLinear column(w_column, nullptr, tp, {.sequence_parallel = split});
      column.compute_in(reference.products());
      const auto whole = positions(reference.dy).clone().requires_grad_(true);
      const auto outputs = column.forward(whole);
      EXPECT_NEAR_TENSOR(outputs, own(turned_y, 2), 1e-13);
      outputs.backward(own(reference.x, 2));
      EXPECT_NEAR_TENSOR(whole.grad(), positions(turned_dx), 1e-13);
      EXPECT_NEAR_TENSOR(w_column->grad, own(turned_dw, 0), 1e-13);
    }
  });
}

class Fp8BlocksOfTokens : public ::testing::TestWithParam<Fp8Scales> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Fp8BlocksOfTokens, ::testing::Values(Fp8Scales::Block, Fp8Scales::Mx));

// Tokens of one sequence alone share a scale: a microbatch of two is two of one.
TEST_P(Fp8BlocksOfTokens, DoNotFollowTheMicrobatch) {
  const Reference reference(GetParam());
  Fp8Pass together(reference.products()), apart(reference.products());
  const at::Tensor one = at::zeros_like(reference.w), sum = at::zeros_like(reference.w);
  together.weight_gradient(one, reference.dy, reference.x, 0);
  for (const std::int64_t sample : {0, 1}) {
    const auto of = [&](const at::Tensor& t) { return t.narrow(1, sample, 1).contiguous(); };
    apart.weight_gradient(sum, of(reference.dy), of(reference.x), sample == 0 ? 0 : 1);
  }
  EXPECT_NEAR_TENSOR(sum, one, 1e-13);
}

TEST_P(Fp8BlocksOfTokens, AreNotScaledWhereWeightGradientsAreThoseOfTheType) {
  Reference reference(GetParam());
  reference.recipe.weight_gradients = false;
  Fp8Pass pass(reference.products());
  const at::Tensor grad = at::zeros_like(reference.w);
  pass.weight_gradient(grad, reference.dy, reference.x, 0);
  EXPECT_NEAR_TENSOR(grad, Reference::rows(reference.dy).t().matmul(Reference::rows(reference.x)), 1e-13);
}

/// Where cuBLAS finds the scale of row `outer` and block `k` of an operand, by its documentation of block scaling: that
/// of 1 x 128 numbers at outer + k rows, of squares at k + outer/128 round_up(blocks, 4); of 1 x 32 in tiles of 128
/// rows and 4 blocks, 512 bytes each, at (outer % 32) 16 + (outer % 128 / 32) 4 + k % 4.
std::int64_t place_of_scale(const Fp8Matrix& matrix, std::int64_t outer, std::int64_t k) {
  const std::int64_t rows = matrix.numbers.size(0), size = matrix.tile.size;
  const std::int64_t blocks = (matrix.numbers.size(1) + size - 1) / size, column = (blocks + 3) / 4 * 4;
  if (matrix.tile.along == Along::Both) return k + outer / 128 * column;
  if (size == 128) return outer + k * rows;
  return (outer / 128 * (column / 4) + k / 4) * 512 + outer % 32 * 16 + outer % 128 / 32 * 4 + k % 4;
}

/// The product of two operands as cuBLAS reads memory: numbers are rows of `inner`.
at::Tensor as_units_read(const Fp8Matrix& a, const Fp8Matrix& b) {
  const auto scaled = [](const Fp8Matrix& matrix) {
    EXPECT_TRUE(matrix.numbers.is_contiguous());
    // The scales as they lie in memory, whatever the strides.
    const at::Tensor memory = matrix.inverse.as_strided({matrix.inverse.numel()}, {1}).to(at::kDouble);
    const auto* const scale = memory.const_data_ptr<double>();
    at::Tensor numbers = matrix.numbers.to(at::kDouble);
    auto to = numbers.accessor<double, 2>();
    for (std::int64_t i = 0; i < to.size(0); ++i)
      for (std::int64_t j = 0; j < to.size(1); ++j) to[i][j] *= scale[place_of_scale(matrix, i, j / matrix.tile.size)];
    return numbers;
  };
  EXPECT_EQ(b.numbers.size(1), a.numbers.size(1));
  return scaled(a).matmul(scaled(b).t());
}

/// What ATen's _scaled_mm_v2 requires of scales: of 1 x 32 numbers E8M0, contiguous, a number of each of whole tiles of
/// 128 x 4; of others float32 whose first dimension has stride 1, the second that of a whole column.
void expect_as_aten_wants(const Fp8Matrix& matrix) {
  const std::int64_t outer = matrix.numbers.size(0), blocks = matrix.numbers.size(1) / matrix.tile.size;
  if (matrix.tile.size == 32) {
    EXPECT_EQ(matrix.inverse.numel(), (outer + 127) / 128 * 128 * ((blocks + 3) / 4 * 4));
    EXPECT_TRUE(matrix.inverse.is_contiguous());
    EXPECT_EQ(matrix.inverse.scalar_type(), at::kFloat8_e8m0fnu);
    return;
  }
  const bool square = matrix.tile.along == Along::Both;
  const std::int64_t column = square ? (blocks + 3) / 4 * 4 : outer;
  EXPECT_EQ(matrix.inverse.sizes(), at::IntArrayRef({column, square ? outer / 128 : blocks}));
  EXPECT_EQ(matrix.inverse.strides(), at::IntArrayRef({1, column}));
  EXPECT_EQ(matrix.inverse.scalar_type(), at::kFloat);
}

TEST(Fp8Matrices, LieAsUnitsReadThem) {
  for (const Fp8Scales scales : {Fp8Scales::Block, Fp8Scales::Mx}) {
    const Reference reference(scales);
    const std::int64_t block = reference.recipe.block();
    const std::int64_t outputs = 3 * block, inputs = 5 * block;  // no whole tiles of scales
    const at::Tensor x = uneven({256, 3, inputs}), dy = uneven({256, 3, outputs}), w = uneven({outputs, inputs});
    const auto matrices = [&](const at::Tensor& t, Fp8Type type, bool squares = false) {
      return kernels::fp8_matrices(t, scalar_type_of(type), block, squares, {.rows = true, .turned = true});
    };
    const auto [input, tokens] = matrices(x, Fp8Type::E4M3);
    const auto [gradient, gradients] = matrices(dy, Fp8Type::E5M2);
    const auto [weight, weight_turned] = matrices(w, Fp8Type::E4M3, scales == Fp8Scales::Block);
    for (const Fp8Matrix& matrix : {input, weight, gradient, weight_turned, gradients, tokens})
      expect_as_aten_wants(matrix);
    Fp8Pass pass(reference.products());
    const auto near = [](const at::Tensor& got, const at::Tensor& want) {
      EXPECT_NEAR_TENSOR(got, Reference::rows(want), 1e-13);
    };
    for (const auto& [a, b] : {std::pair{input, weight}, {gradient, weight_turned}, {gradients, tokens}})
      EXPECT_NEAR_TENSOR(fp8_emulated_product(a, b, at::kDouble), as_units_read(a, b), 1e-13);
    near(as_units_read(input, weight), pass.output(x, w, {}));
    near(as_units_read(gradient, weight_turned), pass.input_gradient(dy, w));
    const at::Tensor grad = at::zeros_like(w);
    pass.weight_gradient(grad, dy, x, 0);
    near(as_units_read(gradients, tokens), grad);
    EXPECT_THROW(matrices(uneven({130, 1, 128}), Fp8Type::E4M3), std::invalid_argument);
    EXPECT_THROW(matrices(x, Fp8Type::E4M3, /*squares=*/true), std::invalid_argument);
  }
}

TEST(Fp8ScalingOfBlocks, KeepsNothing) {
  for (const Fp8Scales scales : {Fp8Scales::Block, Fp8Scales::Mx}) {
    const plan::Fp8Recipe recipe{.scales = scales, .history = 0};
    Fp8Scaling scaling(recipe, {"layer", "other"}, at::kCPU);
    EXPECT_FALSE(scaling.keeps_magnitudes());
    EXPECT_EQ(scaling.layers(), 2);
    EXPECT_EQ(scaling.number_of("other"), 1);
    scaling.reset();
    EXPECT_EQ(scaling.bytes(), 0);
    EXPECT_EQ(plan::fp8_state_bytes(recipe, 2, true), 0);
  }
}

}  // namespace
}  // namespace megatron::parallel
