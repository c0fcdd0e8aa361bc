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

using plan::Fp8Type;
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

at::Tensor by_features(const at::Tensor& x, Fp8Type type) { return rounded_by_loops(x, type, 1, 1, 128); }
at::Tensor by_tokens(const at::Tensor& x, Fp8Type type) { return rounded_by_loops(x, type, 128, 1, 1); }
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
        const at::Tensor features = fp8_rounded_in_blocks(x, type, Fp8Tile::Features);
        EXPECT_EQ(features.scalar_type(), dtype);
        EXPECT_TRUE(at::equal(features.to(at::kDouble), by_features(x, type))) << dtype << size;
        const at::Tensor tokens = fp8_rounded_in_blocks(x, type, Fp8Tile::Tokens);
        EXPECT_TRUE(at::equal(tokens.to(at::kDouble), by_tokens(x, type))) << dtype << size;
      }
  const at::Tensor w = uneven({130, 257}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(fp8_rounded_in_blocks(w, Fp8Type::E4M3, Fp8Tile::Square).to(at::kDouble), by_squares(w)));
}

TEST(Fp8Blocks, AreZeroWhereAllIs) {
  for (const Fp8Tile tile : {Fp8Tile::Features, Fp8Tile::Tokens, Fp8Tile::Square})
    EXPECT_TRUE(at::equal(fp8_rounded_in_blocks(at::zeros({128, 130}), Fp8Type::E4M3, tile), at::zeros({128, 130})));
}

// A clamped infinity would hide what has overflowed: the whole block says so, and no other.
TEST(Fp8Blocks, SayWhereANumberIsNotFinite) {
  for (const double number : {std::numeric_limits<double>::infinity(), testing::kNaN}) {
    at::Tensor x = at::randn({3, 256});
    x[1][200] = number;
    const at::Tensor rounded = fp8_rounded_in_blocks(x, Fp8Type::E4M3, Fp8Tile::Features);
    EXPECT_EQ(rounded.isnan().sum().item<std::int64_t>(), 128);
    EXPECT_TRUE(rounded[1].narrow(0, 128, 128).isnan().all().item<bool>());
    EXPECT_TRUE(fp8_in_blocks(x, Fp8Type::E4M3, Fp8Tile::Features).inverse[1][1].isnan().item<bool>());
  }
}

/// A layer of 256 -> 384 and what its products are: of the numbers that the loops give.
struct Reference {
  explicit Reference(Fp8Type gradients) : recipe{.gradients = gradients, .scales = plan::Fp8Scales::Block} {}

  plan::Fp8Recipe recipe;
  at::Tensor x = uneven({130, 2, 256}), w = uneven({384, 256}), dy = uneven({130, 2, 384});
  at::Tensor y = by_features(x, Fp8Type::E4M3).matmul(by_squares(w).t());
  at::Tensor dx = by_features(dy, recipe.gradients).matmul(by_squares(w));
  at::Tensor dw = rows(by_tokens(dy, recipe.gradients)).t().matmul(rows(by_tokens(x, Fp8Type::E4M3)));

  static at::Tensor rows(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }
  Fp8ProductsPtr products() const {
    return std::make_shared<const Fp8Products>(
        std::make_shared<Fp8Scaling>(recipe, std::vector<std::string>{"other", "layer"}, at::kCPU), "layer");
  }
};

class Fp8BlocksTp : public ::testing::TestWithParam<std::tuple<int, Fp8Type>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Fp8BlocksTp,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(Fp8Type::E4M3, Fp8Type::E5M2)));

TEST_P(Fp8BlocksTp, ColumnAndRowParallelLayersMultiplyTheRoundedNumbers) {
  const auto [ranks, gradients] = GetParam();
  const Reference reference(gradients);
  // Of a column-parallel layer 192 outputs each would cut blocks: 384 rows are 3 blocks. It has 256, and 384 inputs.
  const at::Tensor turned = reference.w.t().contiguous();
  const at::Tensor z = by_features(reference.dy, Fp8Type::E4M3).matmul(by_squares(turned).t());
  comm::run_ranks(ranks, [&, gradients = gradients](comm::Group tp) {
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
      const auto y = row.forward(features);
      EXPECT_NEAR_TENSOR(y, positions(reference.y), 1e-13);
      y.backward(positions(reference.dy));
      EXPECT_NEAR_TENSOR(features.grad(), own(reference.dx, 2), 1e-13);
      EXPECT_NEAR_TENSOR(w_row->grad, own(reference.dw, 1), 1e-13);

      const auto w_column = make_parameter("w", turned, 0, tp.size(), tp.rank());
      ColumnParallelLinear column(w_column, nullptr, tp, {.sequence_parallel = split});
      column.compute_in(reference.products());
      const auto whole = positions(reference.dy).clone().requires_grad_(true);
      const auto out = column.forward(whole);
      EXPECT_NEAR_TENSOR(out, own(z, 2), 1e-13);
      out.backward(own(reference.x, 2));
      const auto d = by_features(reference.x, gradients).matmul(by_squares(turned));
      EXPECT_NEAR_TENSOR(whole.grad(), positions(d), 1e-13);
      const auto rows = Reference::rows;
      const auto dw = rows(by_tokens(reference.x, gradients)).t().matmul(rows(by_tokens(reference.dy, Fp8Type::E4M3)));
      EXPECT_NEAR_TENSOR(w_column->grad, own(dw, 0), 1e-13);
    }
  });
}

// Tokens of one sequence alone share a scale: a microbatch of two is two of one.
TEST(Fp8BlocksOfTokens, DoNotFollowTheMicrobatch) {
  const Reference reference(Fp8Type::E5M2);
  Fp8Pass together(reference.products()), apart(reference.products());
  const at::Tensor one = at::zeros_like(reference.w), sum = at::zeros_like(reference.w);
  together.weight_gradient(one, reference.dy, reference.x, 0);
  for (const std::int64_t sample : {0, 1}) {
    const auto of = [&](const at::Tensor& t) { return t.narrow(1, sample, 1).contiguous(); };
    apart.weight_gradient(sum, of(reference.dy), of(reference.x), sample == 0 ? 0 : 1);
  }
  EXPECT_NEAR_TENSOR(sum, one, 1e-13);
}

TEST(Fp8BlocksOfTokens, AreNotScaledWhereWeightGradientsAreThoseOfTheType) {
  Reference reference(Fp8Type::E5M2);
  reference.recipe.weight_gradients = false;
  Fp8Pass pass(reference.products());
  const at::Tensor grad = at::zeros_like(reference.w);
  pass.weight_gradient(grad, reference.dy, reference.x, 0);
  EXPECT_NEAR_TENSOR(grad, Reference::rows(reference.dy).t().matmul(Reference::rows(reference.x)), 1e-13);
}

/// The product of two operands as cuBLAS reads memory, by its documentation of 1D and 2D block scaling: numbers are
/// rows of `inner`; the scale of row m and block k of tiles is at m + k outer, that of squares at k + n
/// round_up(blocks, 4).
at::Tensor as_units_read(const Fp8Matrix& a, const Fp8Matrix& b) {
  const std::int64_t m = a.numbers.size(0), n = b.numbers.size(0), inner = a.numbers.size(1);
  EXPECT_TRUE(a.numbers.is_contiguous() && b.numbers.is_contiguous());
  EXPECT_EQ(b.numbers.size(1), inner);
  const at::Tensor wide_a = a.numbers.to(at::kDouble), wide_b = b.numbers.to(at::kDouble);
  const at::Tensor scales_a = at::zeros({m, inner}, at::kDouble), scales_b = at::zeros({n, inner}, at::kDouble);
  const auto fill = [&](const Fp8Matrix& matrix, const at::Tensor& scales) {
    const std::int64_t outer = matrix.numbers.size(0), blocks = (inner + 127) / 128, column = (blocks + 3) / 4 * 4;
    const auto* const memory = matrix.inverse.const_data_ptr<float>();
    auto to = scales.accessor<double, 2>();
    for (std::int64_t i = 0; i < outer; ++i)
      for (std::int64_t j = 0; j < inner; ++j)
        to[i][j] = memory[matrix.square ? j / 128 + i / 128 * column : i + j / 128 * outer];
  };
  fill(a, scales_a);
  fill(b, scales_b);
  return wide_a.mul(scales_a).matmul(wide_b.mul(scales_b).t());
}

/// What ATen's _scaled_mm_v2 requires of scales: their sizes, float32, and that the first dimension has stride 1, the
/// second that of a whole column.
void expect_as_aten_wants(const Fp8Matrix& matrix) {
  const std::int64_t outer = matrix.numbers.size(0), blocks = matrix.numbers.size(1) / 128;
  const std::int64_t column = matrix.square ? (blocks + 3) / 4 * 4 : outer;
  EXPECT_EQ(matrix.inverse.sizes(), at::IntArrayRef({column, matrix.square ? outer / 128 : blocks}));
  EXPECT_EQ(matrix.inverse.strides(), at::IntArrayRef({1, column}));
  EXPECT_EQ(matrix.inverse.scalar_type(), at::kFloat);
}

TEST(Fp8Matrices, LieAsUnitsReadThem) {
  const Reference reference(Fp8Type::E5M2);
  const at::Tensor x = uneven({256, 3, 640}), dy = uneven({256, 3, 384}), w = uneven({384, 640});
  const Fp8Matrix input = fp8_matrix_of_features(x, Fp8Type::E4M3),
                  weight = fp8_matrix_of_weight(w, Fp8Type::E4M3, false);
  const Fp8Matrix gradient = fp8_matrix_of_features(dy, Fp8Type::E5M2),
                  turned = fp8_matrix_of_weight(w, Fp8Type::E4M3, true);
  const Fp8Matrix columns = fp8_matrix_of_tokens(dy, Fp8Type::E5M2), inputs = fp8_matrix_of_tokens(x, Fp8Type::E4M3);
  for (const Fp8Matrix& matrix : {input, weight, gradient, turned, columns, inputs}) expect_as_aten_wants(matrix);
  Fp8Pass pass(reference.products());
  const auto near = [](const at::Tensor& got, const at::Tensor& want) {
    EXPECT_NEAR_TENSOR(got, Reference::rows(want), 1e-13);
  };
  near(as_units_read(input, weight), pass.output(x, w, {}));
  near(as_units_read(gradient, turned), pass.input_gradient(dy, w));
  const at::Tensor grad = at::zeros_like(w);
  pass.weight_gradient(grad, dy, x, 0);
  near(as_units_read(columns, inputs), grad);
  EXPECT_THROW(fp8_matrix_of_tokens(uneven({130, 1, 128}), Fp8Type::E4M3), std::invalid_argument);
}

TEST(Fp8ScalingOfBlocks, KeepsNothing) {
  const plan::Fp8Recipe recipe{.scales = plan::Fp8Scales::Block, .history = 0};
  Fp8Scaling scaling(recipe, {"layer", "other"}, at::kCPU);
  EXPECT_FALSE(scaling.keeps_magnitudes());
  EXPECT_EQ(scaling.layers(), 2);
  EXPECT_EQ(scaling.number_of("other"), 1);
  scaling.reset();
  EXPECT_EQ(scaling.bytes(), 0);
  EXPECT_EQ(plan::fp8_state_bytes(recipe, 2, true), 0);
}

}  // namespace
}  // namespace megatron::parallel
