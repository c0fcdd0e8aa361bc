#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/processor.h"
#include "megatron/kernels/cpu/products/tile_multiply.h"
#include "megatron/kernels/cpu/products/tiles.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/tile_matmul.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

namespace megatron::kernels {
namespace {

/// Also puts the precision of float32 products back.
class TileProductTest : public OnEmulatedTiles {
 protected:
  void TearDown() override {
    set_matmul_precision("highest");
    OnEmulatedTiles::TearDown();
  }
};

struct Shape {
  std::int64_t rows, outputs, inputs;
};
// Edges of tiles, panels and pieces; inputs read where they lie (multiples of 32) or packed; several groups of columns,
// several pieces of depth, several pieces of work.
const std::vector<Shape> kShapes = {{9, 1, 1},      {17, 5, 3},     {32, 32, 32},    {33, 31, 47},   {64, 96, 64},
                                    {45, 64, 96},   {70, 33, 65},   {33, 40, 800},   {40, 600, 800}, {530, 40, 70},
                                    {33, 40, 1600}, {70, 1650, 33}, {300, 64, 1650}, {2100, 40, 64}};
constexpr double kBf16 = 4.0e-3, kFloat = 1e-6;

at::Tensor bf16(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }

TEST_F(TileProductTest, OfBf16IsTheProductOfTheSameNumbersRoundedOnce) {
  on_each([] {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.outputs << " x " << s.inputs);
      const at::Tensor x = bf16({s.rows, s.inputs}), w = bf16({s.outputs, s.inputs}), dy = bf16({s.rows, s.outputs});
      EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(wide(x), wide(w).t())), kBf16);
      EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(wide(dy), wide(w))), kBf16);
      PackedWeight packed;
      EXPECT_TRUE(kernels::linear(x, w, &packed).equal(kernels::linear(x, w)));
      EXPECT_TRUE(linear_input_gradient(dy, w, &packed).equal(linear_input_gradient(dy, w)));
    }
  });
}

TEST_F(TileProductTest, WeightGradientsAreSummedInTheirBufferInFloat32) {
  on_each([] {
    for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
      for (const Shape& s : kShapes) {
        SCOPED_TRACE(testing::Message() << stored << " " << s.rows << " x " << s.outputs << " x " << s.inputs);
        const at::Tensor x = bf16({s.rows, s.inputs}), dy = bf16({s.rows, s.outputs});
        const at::Tensor truth = at::matmul(wide(dy).t(), wide(x));
        const at::Tensor buffer = at::full({s.outputs * s.inputs + 14}, 9, at::TensorOptions(stored));
        const at::Tensor grad = buffer.narrow(0, 7, s.outputs * s.inputs).view({s.outputs, s.inputs});
        const double bound = stored == at::kFloat ? kFloat : kBf16;
        linear_weight_gradient(grad, dy, x, 0.0);
        EXPECT_LT(relative_error(grad, truth), bound);
        linear_weight_gradient(grad, dy, x, 1.0);
        EXPECT_LT(relative_error(grad, 2 * truth), 2 * bound);
        EXPECT_TRUE(buffer.narrow(0, 0, 7).eq(9).all().item<bool>() &&
                    buffer.narrow(0, buffer.numel() - 7, 7).eq(9).all().item<bool>());
      }
    }
  });
}

TEST_F(TileProductTest, WeightGradientsOfManyRowsAreSummedInSeveralParts) {
  const at::Tensor x = bf16({2100, 35}), dy = bf16({2100, 33}), grad = at::zeros({33, 35});
  linear_weight_gradient(grad, dy, x, 0.0);
  EXPECT_LT(relative_error(grad, at::matmul(wide(dy).t(), wide(x))), kFloat);
}

TEST_F(TileProductTest, AGradientOfNoRowsIsZero) {
  configure_thread(2);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor grad = at::ones({512, 64});
    linear_weight_gradient(grad, at::empty({0, 512}, type), at::empty({0, 64}, type), 0.0);
    EXPECT_TRUE(grad.eq(0).all().item<bool>());
  }
}

TEST_F(TileProductTest, OperandsMayBeViewsWithGapsBetweenRows) {
  const at::Tensor x = bf16({50, 90}).narrow(1, 3, 64), w = bf16({30, 100}).narrow(1, 30, 64), dy = bf16({30, 50}).t();
  EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(wide(x), wide(w).t())), kBf16);
  EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(wide(dy), wide(w))), kBf16);
}

TEST_F(TileProductTest, ThreadsDoNotChangeTheResult) {
  const at::Tensor x = bf16({300, 96}), w = bf16({700, 96});
  const at::Tensor alone = kernels::linear(x, w);
  configure_thread(2);
  EXPECT_TRUE(kernels::linear(x, w).equal(alone));
}

// More threads than pieces of columns, so that the weight is packed once for all; sums that are added to, whose last
// columns fill no panel.
TEST_F(TileProductTest, ManyThreadsDoNotChangeTheResultEither) {
  const at::Tensor x = bf16({600, 1100}), w = bf16({330, 1100}), dy = bf16({600, 330}), begin = at::randn({330, 1100});
  const auto results = [&] {
    const at::Tensor grad = begin.clone();
    linear_weight_gradient(grad, dy, x, 1.0);
    return std::vector{kernels::linear(x, w), linear_input_gradient(dy, w), grad};
  };
  const auto alone = results();
  for (const int threads : {2, 3, 8}) {
    configure_thread(threads);
    const auto together = results();
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(together[i].equal(alone[i])) << threads << " threads";
  }
}

// hi + lo of a float32 number leaves 2^-17 of it, and the product of two such leaves lo lo.
TEST_F(TileProductTest, ThreeBf16ProductsOfFloat32AreNearlyAsExactAsFloat32) {
  on_each([] {
    for (const Shape& s : kShapes) {
      if (s.rows <= 16) continue;  // few rows are computed in float32
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.outputs << " x " << s.inputs);
      const at::Tensor x = at::randn({s.rows, s.inputs}), w = at::randn({s.outputs, s.inputs});
      const at::Tensor dy = at::randn({s.rows, s.outputs}), grad = at::zeros({s.outputs, s.inputs});
      const auto errors = [&] {
        linear_weight_gradient(grad, dy, x, 0.0);
        return std::vector{relative_error(kernels::linear(x, w), at::matmul(wide(x), wide(w).t())),
                           relative_error(linear_input_gradient(dy, w), at::matmul(wide(dy), wide(w))),
                           relative_error(grad, at::matmul(wide(dy).t(), wide(x)))};
      };
      set_matmul_precision("high");
      if (!cpu::emulated_tiles() && instruction_set() == "avx512_bf16") {
        EXPECT_EQ(matmul_precision(), "highest") << "three such products are slower than one of float32";
        for (const double error : errors()) EXPECT_LT(error, 1e-6);
        continue;
      }
      EXPECT_EQ(matmul_precision(), "high");
      for (const double error : errors()) {
        EXPECT_LT(error, 1e-5);
        EXPECT_GT(error, 5e-7) << "this is float32 arithmetic";
      }
      set_matmul_precision("highest");
      for (const double error : errors()) EXPECT_LT(error, 1e-6);
    }
  });
}

// Three bf16 numbers hold all bits of a float32 one, and what six products leave out is below what float32 rounds off.
TEST_F(TileProductTest, SixBf16ProductsOfFloat32AreAsExactAsFloat32) {
  on_each([] {
    for (const Shape& s : std::vector<Shape>{{128, 256, 256}, {130, 300, 270}, {300, 257, 1000}}) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.outputs << " x " << s.inputs);
      const at::Tensor x = at::randn({s.rows, s.inputs}), w = at::randn({s.outputs, s.inputs});
      const at::Tensor dy = at::randn({s.rows, s.outputs}), grad = at::zeros({s.outputs, s.inputs});
      const bool tiles = cpu::emulated_tiles() || instruction_set() == "amx";
      EXPECT_EQ(on_tiles(x, w), tiles);
      PackedWeight packed;
      linear_weight_gradient(grad, dy, x, 0.0);
      const at::Tensor y = kernels::linear(x, w, &packed), dx = linear_input_gradient(dy, w, &packed);
      const at::Tensor of_y = at::matmul(wide(x), wide(w).t()), of_dx = at::matmul(wide(dy), wide(w));
      EXPECT_LT(relative_error(y, of_y), 1.5 * relative_error(at::matmul(x, w.t()), of_y));
      EXPECT_LT(relative_error(dx, of_dx), 1.5 * relative_error(at::matmul(dy, w), of_dx));
      const at::Tensor of_grad = at::matmul(wide(dy).t(), wide(x));
      EXPECT_LT(relative_error(grad, of_grad), 1.5 * relative_error(at::matmul(dy.t(), x), of_grad));
      EXPECT_FALSE(packed.kept_for_output(w).defined()) << "a copy would take half as much again as the weight";
      if (tiles) {
        configure_thread(3);
        EXPECT_TRUE(kernels::linear(x, w).equal(y)) << "threads change the result";
        configure_thread(1);
      }
    }
  });
}

// Numbers with 24 bits, of which the sums are exact in float64 and the products need all parts.
TEST_F(TileProductTest, NoBitOfAFloat32NumberIsLost) {
  const at::Tensor x = at::zeros({128, 256}), w = at::zeros({256, 256});
  x.select(1, 0).fill_(1.0f + 0x1p-11f + 0x1p-23f);
  w.select(1, 0).fill_(1.0f);
  EXPECT_TRUE(kernels::linear(x, w).eq(1.0f + 0x1p-11f + 0x1p-23f).all().item<bool>());
  x.select(1, 0).fill_(-1.0f);
  w.select(1, 0).fill_(0x1.fffffep+3f);
  EXPECT_TRUE(kernels::linear(x, w).eq(-0x1.fffffep+3f).all().item<bool>());
}

// With few threads a wide operand is packed while it is read, a chunk at a time; with many both are packed before.
TEST_F(TileProductTest, WhoPacksAnOperandOfFloat32DoesNotChangeTheResult) {
  const at::Tensor x = at::randn({448, 270}), w = at::randn({512, 270}), dy = at::randn({448, 512});
  const at::Tensor bias = at::randn({512}), begin = at::randn({512, 270}), thin = at::randn({130, 270});
  const at::Tensor few = at::randn({200, 512}), few_x = at::randn({200, 600}), wider = at::randn({512, 600});
  ASSERT_TRUE(on_tiles(x, w));
  const auto results = [&] {
    const at::Tensor grad = begin.clone();
    linear_weight_gradient(grad, dy, x, 1.0);
    const at::Tensor wider_grad = wider.clone();
    linear_weight_gradient(wider_grad, few, few_x, 1.0);
    const ActivatedOutput gated = linear_activation(x, w, bias, Activation::Silu, true);
    return std::vector{kernels::linear(x, w),
                       linear_input_gradient(dy, w),
                       grad,
                       wider_grad,
                       linear_input_gradient(few, wider),
                       gated.u,
                       gated.y,
                       kernels::linear(thin, w, nullptr, bias)};
  };
  const at::Tensor y = at::matmul(wide(x), wide(w).t());
  const std::vector<at::Tensor> truths = {y,
                                          at::matmul(wide(dy), wide(w)),
                                          wide(begin) + at::matmul(wide(dy).t(), wide(x)),
                                          wide(wider) + at::matmul(wide(few).t(), wide(few_x)),
                                          at::matmul(wide(few), wide(wider)),
                                          y + wide(bias)};
  const auto alone = results();
  for (std::size_t i = 0; i < truths.size(); ++i)
    EXPECT_LT(relative_error(alone[i], truths[i]), kFloat) << "result " << i;
  for (const int threads : {2, 3}) {
    configure_thread(threads);
    const auto together = results();
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(together[i].equal(alone[i])) << "result " << i << ", " << threads << " threads";
  }
}

TEST_F(TileProductTest, LargeOperandsOfFloat32AreCut) {
  const at::Tensor x = at::randn({130, 270}), w = at::randn({320, 270}), bias = at::randn({320});
  const at::Tensor dy = at::randn({130, 320}), begin = at::randn({320 * 270 + 14}), dz = at::randn({130, 300});
  const at::Tensor v = at::randn({300, 256}), u = at::randn({130, 512});
  const at::Tensor many_x = at::randn({290, 270}), many_dy = at::randn({290, 320});
  const at::Tensor deep_x = at::randn({128, 700}), deep_w = at::randn({256, 700}), deep_bias = at::randn({256});
  for (const auto& [a, b] : {std::pair(x, w), std::pair(many_dy, many_x), std::pair(dz, v), std::pair(deep_x, deep_w)})
    ASSERT_TRUE(on_tiles(a, b));
  const auto results = [&] {
    const at::Tensor buffer = begin.clone(), grad = buffer.narrow(0, 7, 320 * 270).view({320, 270});
    linear_weight_gradient(grad, many_dy, many_x, 1.0);
    const at::Tensor rounded = at::zeros({320, 270}, at::kBFloat16);
    linear_weight_gradient(rounded, many_dy, many_x, 0.0);
    EXPECT_LT(relative_error(rounded, at::matmul(wide(many_dy).t(), wide(many_x))), kBf16);
    const ActivatedOutput gated = linear_activation(x, w, bias, Activation::Silu, true);
    const ActivatedOutput back = linear_activation_gradient(dz, v, u, Activation::Silu, true, true);
    return std::vector{kernels::linear(x, w),
                       kernels::linear(x, w, nullptr, bias),
                       kernels::linear(deep_x, deep_w, nullptr, deep_bias),
                       linear_input_gradient(dy, w),
                       buffer,
                       gated.u,
                       gated.y,
                       back.u,
                       back.y};
  };
  const auto whole = results();
  const std::size_t before = set_most_packed_words(60'000);
  const auto in_parts = results();
  set_most_packed_words(before);
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_LT(relative_error(in_parts[i], wide(whole[i])), 1e-6) << "result " << i;
}

// From kRowsPackedWhileRead on a product keeps no copy, and so needs not be told of what is written.
TEST_F(TileProductTest, OfManyRowsPacksTheWeightWhileItIsRead) {
  on_each([] {
    const std::int64_t rows = kRowsPackedWhileRead;
    const at::Tensor x = bf16({rows, 64}), dy = bf16({rows, 40}), w = bf16({40, 64});
    PackedWeight packed;
    const at::Tensor before = kernels::linear(x, w, &packed), back = linear_input_gradient(dy, w, &packed);
    auto* values = w.mutable_data_ptr<c10::BFloat16>();
    for (std::int64_t i = 0; i < w.numel(); ++i) values[i] = values[i] * 2;
    EXPECT_TRUE(kernels::linear(x, w, &packed).equal(before * 2));
    EXPECT_TRUE(linear_input_gradient(dy, w, &packed).equal(back * 2));
  });
}

// A copy that products of fewer rows made saves those of many the packing, with the same bits.
TEST_F(TileProductTest, OfManyRowsReadsACopyThatIsThere) {
  on_each([] {
    const at::Tensor x = bf16({kRowsPackedWhileRead, 64}), w = bf16({40, 64});
    PackedWeight packed;
    const at::Tensor without = kernels::linear(x, w, &packed);
    (void)kernels::linear(bf16({33, 64}), w, &packed);
    EXPECT_TRUE(kernels::linear(x, w, &packed).equal(without));
    auto* values = w.mutable_data_ptr<c10::BFloat16>();
    for (std::int64_t i = 0; i < w.numel(); ++i) values[i] = values[i] * 2;
    EXPECT_TRUE(kernels::linear(x, w, &packed).equal(without)) << "nothing can know of this";
    written_to(w);
    EXPECT_TRUE(kernels::linear(x, w, &packed).equal(without * 2));
  });
}

// Where a weight stays as it is, products of many rows keep a copy, or those of few rows none: with the same bits.
TEST_F(TileProductTest, MakesTheCopiesThatAreAskedFor) {
  on_each([] {
    const at::Tensor many = bf16({kRowsPackedWhileRead, 64}), few = bf16({33, 64}), w = bf16({40, 64});
    PackedWeight plain, all, none;
    all.keep(WeightCopies::All);
    none.keep(WeightCopies::None);
    const at::Tensor y = kernels::linear(many, w, &plain);
    EXPECT_FALSE(plain.kept_for_output(w).defined());
    EXPECT_TRUE(kernels::linear(many, w, &all).equal(y));
    EXPECT_TRUE(all.kept_for_output(w).defined());
    EXPECT_TRUE(kernels::linear(few, w, &none).equal(kernels::linear(few, w, &plain)));
    EXPECT_TRUE(plain.kept_for_output(w).defined());
    EXPECT_FALSE(none.kept_for_output(w).defined());
  });
}

TEST_F(TileProductTest, PackedWeightsFollowWhatIsWrittenToTheWeight) {
  const at::Tensor buffer = at::randn({40 * 64 + 5}).to(at::kBFloat16), x = bf16({33, 64}), dy = bf16({33, 40});
  const at::Tensor w = buffer.narrow(0, 5, 40 * 64).view({40, 64}).detach();
  PackedWeight packed;
  const at::Tensor before = kernels::linear(x, w, &packed);
  EXPECT_TRUE(kernels::linear(x, w, &packed).equal(before));
  buffer.mul_(2);
  EXPECT_TRUE(kernels::linear(x, w, &packed).equal(before * 2));
  auto* values = buffer.mutable_data_ptr<c10::BFloat16>();
  for (std::int64_t i = 0; i < buffer.numel(); ++i) values[i] = values[i] * 0.5f;
  EXPECT_TRUE(kernels::linear(x, w, &packed).equal(before * 2)) << "nothing can know of this";
  written_to(buffer);
  EXPECT_TRUE(kernels::linear(x, w, &packed).equal(before));
  EXPECT_TRUE(linear_input_gradient(dy, w, &packed).equal(linear_input_gradient(dy, w)));
}

TEST_F(TileProductTest, PrecisionHighHoldsWhereThereAreTilesAlone) {
  cpu::emulate_tiles(false);
  set_matmul_precision("high");
  force_instruction_set("reference");
  EXPECT_EQ(matmul_precision(), "highest");
  EXPECT_THROW(set_matmul_precision("medium"), ConfigError);
}

template <class Tiles>
std::vector<float> three_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  std::vector<float> out(16 * 20, 7.0f);
  Tiles tiles;
  tiles.template load<2>(c.const_data_ptr(), 64);
  tiles.template load<4>(a.const_data_ptr(), 64);
  tiles.template load<5>(b.const_data_ptr(), 64);
  tiles.template multiply<2, 4, 5>();
  tiles.template zero<0>();
  tiles.template multiply<0, 4, 5>();
  tiles.template multiply<2, 4, 5>();
  tiles.template store<2>(out.data(), 80);
  return out;
}

TEST(Tiles, EmulationDoesWhatTheInstructionsDo) {
  const at::Tensor a = bf16({16, 32}), b = bf16({32, 16}), c = at::randn({16, 16});
  const at::Tensor pairs = b.view({16, 2, 16}).transpose(1, 2).contiguous();
  const auto emulated = three_products<cpu::EmulatedTiles>(a, pairs, c);
  const at::Tensor truth = wide(c) + 2 * at::matmul(wide(a), wide(b));
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 20; ++j) {
      const auto row = static_cast<std::int64_t>(i), column = static_cast<std::int64_t>(j);
      EXPECT_NEAR(emulated[i * 20 + j], j < 16 ? truth[row][column].item<double>() : 7.0, 1e-4);
    }
  }
  if (!has_tiles()) GTEST_SKIP() << "this machine has no AMX";
#if defined(__x86_64__)
  const auto real = three_products<cpu::HardwareTiles>(a, pairs, c);
  for (std::size_t i = 0; i < real.size(); ++i) EXPECT_NEAR(real[i], emulated[i], 1e-4);
#endif
}

TEST(Tiles, DotProductsDoWhatTilesDo) {
  if (!has_dots()) GTEST_SKIP() << "this machine has no AVX512_BF16";
  constexpr std::size_t kPieces = 3, kStride = 40;
  const auto depth = static_cast<std::int64_t>(kPieces * cpu::kPieceDepth);
  const at::Tensor a = bf16({32, depth}), b = bf16({depth, 32}), packed = pack_for_tiles(b), c = at::randn({32, 40});
  const at::Tensor truth = at::matmul(wide(a), wide(b));
  const auto* words = reinterpret_cast<const std::uint16_t*>(packed.const_data_ptr<std::int16_t>());
  const std::ptrdiff_t row = 2 * depth;
  for (const bool accumulate : {false, true}) {
    for (const std::size_t rows : {32, 17, 8, 1}) {
      SCOPED_TRACE(testing::Message() << rows << " rows" << (accumulate ? ", added" : ""));
      const at::Tensor sums = c.clone();
      const cpu::LeftPanel left{static_cast<const std::byte*>(a.const_data_ptr()), row, 16 * row, 64, rows};
      cpu::DotTiles dots;
      cpu::multiply_tiles(dots, left, words, kPieces, sums.mutable_data_ptr<float>(), kStride, accumulate);
      const auto count = static_cast<std::int64_t>(rows);
      const at::Tensor want = truth.narrow(0, 0, count) +
                              (accumulate ? wide(c).narrow(0, 0, count).narrow(1, 0, 32) : at::zeros({1}, at::kDouble));
      EXPECT_LT(relative_error(sums.narrow(0, 0, count).narrow(1, 0, 32), want), 1e-6);
      EXPECT_TRUE(sums.narrow(1, 32, 8).equal(c.narrow(1, 32, 8))) << "it wrote behind the columns";
    }
  }
}

}  // namespace
}  // namespace megatron::kernels
