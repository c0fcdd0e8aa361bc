#include "megatron/kernels/matmul.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/embedding.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

namespace megatron::kernels {
namespace {

TEST(Linear, IsTheProductWithTheTransposedWeight) {
  const at::Tensor x = at::randn({5, 2, 7}, at::kDouble), w = at::randn({3, 7}, at::kDouble),
                   dy = at::randn({5, 2, 3}, at::kDouble);
  EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(x, w.t())), 1e-14);
  EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(dy, w)), 1e-14);
  EXPECT_EQ(kernels::linear(x, w).sizes(), (at::IntArrayRef{5, 2, 3}));
}

TEST(Linear, WritesOrAddsTheWeightGradientIntoItsBuffer) {
  const at::Tensor x = at::randn({5, 2, 7}, at::kDouble), dy = at::randn({5, 2, 3}, at::kDouble);
  const at::Tensor truth = at::matmul(dy.reshape({10, 3}).t(), x.reshape({10, 7}));
  const at::Tensor buffer = at::zeros({40}, at::kDouble).fill_(9);
  const at::Tensor grad = buffer.narrow(0, 5, 21).view({3, 7});
  linear_weight_gradient(grad, dy, x, 0.0);
  EXPECT_LT(relative_error(grad, truth), 1e-14);
  linear_weight_gradient(grad, dy, x, 1.0);
  EXPECT_LT(relative_error(grad, 2 * truth), 1e-14);
  EXPECT_TRUE(buffer.narrow(0, 0, 5).eq(9).all().item<bool>() && buffer.narrow(0, 26, 14).eq(9).all().item<bool>());
}

/// Half a unit in the last place of a stored result (2^-8, 2^-11), and the float32 sums.
double bound(at::ScalarType stored) { return stored == at::kBFloat16 ? 4.0e-3 : stored == at::kHalf ? 5.0e-4 : 1e-6; }

struct Shape {
  std::int64_t rows, outputs, inputs;
};

using LinearTest = OnEveryInstructionSet;

// Single blocks with edges in every direction, several blocks, several pieces of depth, and rows up to those of
// decoding, where weights are read in another way.
const std::vector<Shape> kShapes = {{1, 1, 1},     {1, 50, 67},    {3, 4, 8},       {7, 130, 33},  {8, 65, 200},
                                    {33, 7, 5},    {40, 64, 64},   {70, 100, 401},  {97, 17, 800}, {600, 70, 35},
                                    {64, 600, 20}, {35, 16, 1100}, {1024, 1600, 40}};

TEST_F(LinearTest, ProductsOfBf16AndFp16AreThoseOfTheSameNumbersRoundedOnce) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const Shape& s : kShapes) {
        SCOPED_TRACE(testing::Message() << dtype << " " << s.rows << " x " << s.outputs << " x " << s.inputs);
        const at::Tensor x = at::randn({s.rows, s.inputs}).to(dtype), w = at::randn({s.outputs, s.inputs}).to(dtype);
        const at::Tensor dy = at::randn({s.rows, s.outputs}).to(dtype);
        const at::Tensor y = kernels::linear(x, w), dx = linear_input_gradient(dy, w);
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_LT(relative_error(y, at::matmul(wide(x), wide(w).t())), bound(dtype));
        EXPECT_LT(relative_error(dx, at::matmul(wide(dy), wide(w))), bound(dtype));
      }
    }
  });
}

/// Float32 products are libtorch's or our own, by the processor: here both on any, which other tests leave to it.
class Float32Products : public OnEveryInstructionSet {
 protected:
  template <class Body>
  void on_both(const Body& body) {
    for (const auto products : {cpu::Float32Products::Own, cpu::Float32Products::Library}) {
      SCOPED_TRACE(products == cpu::Float32Products::Own ? "own products" : "libtorch's products");
      cpu::choose_float32_products(products);
      on_each(body);
    }
  }
  void TearDown() override {
    cpu::choose_float32_products(cpu::Float32Products::OfThisMachine);
    OnEveryInstructionSet::TearDown();
  }
};

TEST_F(Float32Products, AreTheSameOwnOrTheLibrarys) {
  on_both([] {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.outputs << " x " << s.inputs);
      const at::Tensor x = at::randn({s.rows, s.inputs}), w = at::randn({s.outputs, s.inputs});
      const at::Tensor dy = at::randn({s.rows, s.outputs});
      EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(wide(x), wide(w).t())), 1e-6);
      EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(wide(dy), wide(w))), 1e-6);
      const at::Tensor truth = at::matmul(wide(dy).t(), wide(x)), grad = at::full({s.outputs, s.inputs}, 9.0);
      linear_weight_gradient(grad, dy, x, 0.0);
      EXPECT_LT(relative_error(grad, truth), 1e-6);
      linear_weight_gradient(grad, dy, x, 1.0);
      EXPECT_LT(relative_error(grad, 2 * truth), 2e-6);
    }
  });
}

TEST_F(Float32Products, TakeLongSumsInPieces) {
  on_both([] {
    const at::Tensor x = at::randn({30000, 20}), dy = at::randn({30000, 64}), grad = at::zeros({64, 20});
    linear_weight_gradient(grad, dy, x, 0.0);
    EXPECT_LT(relative_error(grad, at::matmul(wide(dy).t(), wide(x))), 8e-7);
  });
}

TEST_F(Float32Products, DoNotChangeWithTheThreads) {
  cpu::choose_float32_products(cpu::Float32Products::Own);
  on_each([] {
    const at::Tensor x = at::randn({700, 300}), w = at::randn({520, 300}), alone = kernels::linear(x, w);
    configure_thread(2);
    EXPECT_TRUE(kernels::linear(x, w).equal(alone));
    configure_thread(1);
  });
}

TEST_F(Float32Products, MayReadViewsWithGapsBetweenRows) {
  on_both([] {
    const at::Tensor x = at::randn({50, 90}).narrow(1, 3, 40), w = at::randn({30, 100}).narrow(1, 50, 40);
    const at::Tensor dy = at::randn({30, 50}).t(), grad = at::zeros({30, 40});
    EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(wide(x), wide(w).t())), 1e-6);
    EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(wide(dy), wide(w))), 1e-6);
    linear_weight_gradient(grad, dy, x, 0.0);
    EXPECT_LT(relative_error(grad, at::matmul(wide(dy).t(), wide(x))), 1e-6);
  });
}

// One chain of 30000 sums is off by 2e-6 and more; pieces that are added up by 4e-7.
TEST_F(LinearTest, LongSumsAreTakenInPieces) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
      const at::Tensor x = at::randn({30000, 20}).to(dtype), dy = at::randn({30000, 64}).to(dtype);
      const at::Tensor grad = at::zeros({64, 20});
      linear_weight_gradient(grad, dy, x, 0.0);
      EXPECT_LT(relative_error(grad, at::matmul(wide(dy).t(), wide(x))), 8e-7) << dtype;
    }
  });
}

TEST_F(LinearTest, WeightGradientsOfBf16AreSummedInTheBuffersDtype) {
  on_each([] {
    for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
      for (const Shape& s : kShapes) {
        SCOPED_TRACE(testing::Message() << stored << " " << s.rows << " x " << s.outputs << " x " << s.inputs);
        const at::Tensor x = at::randn({s.rows, s.inputs}).to(at::kBFloat16);
        const at::Tensor dy = at::randn({s.rows, s.outputs}).to(at::kBFloat16);
        const at::Tensor truth = at::matmul(wide(dy).t(), wide(x));
        const at::Tensor buffer = at::full({s.outputs * s.inputs + 14}, 9, at::TensorOptions(stored));
        const at::Tensor grad = buffer.narrow(0, 7, s.outputs * s.inputs).view({s.outputs, s.inputs});
        linear_weight_gradient(grad, dy, x, 0.0);
        EXPECT_LT(relative_error(grad, truth), bound(stored));
        linear_weight_gradient(grad, dy, x, 1.0);
        EXPECT_LT(relative_error(grad, 2 * truth), 2 * bound(stored));
        linear_weight_gradient(grad, dy, x, 0.5);
        EXPECT_LT(relative_error(grad, 2 * truth), 3 * bound(stored));
        EXPECT_TRUE(buffer.narrow(0, 0, 7).eq(9).all().item<bool>() &&
                    buffer.narrow(0, buffer.numel() - 7, 7).eq(9).all().item<bool>());
      }
    }
  });
}

TEST_F(LinearTest, FewRowsTimesAnyWeightAreTheSameProduct) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (std::int64_t rows = 1; rows <= 9; ++rows) {
        const at::Tensor x = at::randn({rows, 1, 83}).to(dtype), w = at::randn({37, 83}).to(dtype);
        const at::Tensor y = kernels::linear(x, w);
        EXPECT_EQ(y.sizes(), (at::IntArrayRef{rows, 1, 37}));
        EXPECT_LT(relative_error(y, at::matmul(wide(x), wide(w).t())), bound(dtype)) << dtype << " " << rows;
      }
    }
  });
}

TEST_F(LinearTest, EachOfFewRowsIsWhatItIsAlone) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const std::int64_t depth : {83, 320}) {
        const at::Tensor w = at::randn({50, depth}).to(dtype);
        const std::int64_t most = most_few_rows(w);
        const at::Tensor x = at::randn({most, depth}).to(dtype);
        std::vector<at::Tensor> alone;
        for (std::int64_t row = 0; row < most; ++row) alone.push_back(kernels::linear(x.narrow(0, row, 1), w));
        for (const std::int64_t rows : {std::int64_t{2}, std::int64_t{3}, most - 1, most})
          EXPECT_TRUE(kernels::linear(x.narrow(0, 0, rows), w).equal(at::cat(alone).narrow(0, 0, rows)))
              << dtype << " " << depth << " " << rows;
      }
  });
}

TEST_F(LinearTest, OperandsMayBeViewsWithGapsBetweenRows) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t rows : {4, 50}) {
        const at::Tensor x = at::randn({rows, 90}).to(dtype).narrow(1, 3, 40);
        const at::Tensor w = at::randn({30, 100}).to(dtype).narrow(1, 50, 40), dy = at::randn({30, rows}).to(dtype).t();
        EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(wide(x), wide(w).t())), bound(dtype));
        EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(wide(dy), wide(w))), bound(dtype));
        const at::Tensor grad = at::zeros({30, 40});
        linear_weight_gradient(grad, dy, x, 0.0);
        EXPECT_LT(relative_error(grad, at::matmul(wide(dy).t(), wide(x))), bound(at::kFloat));
      }
    }
  });
}

TEST_F(LinearTest, ThreadsDoNotChangeTheResult) {
  on_each([] {
    for (const std::int64_t rows : {3, 700}) {
      const at::Tensor x = at::randn({rows, 300}).to(at::kBFloat16), w = at::randn({520, 300}).to(at::kBFloat16);
      const at::Tensor alone = kernels::linear(x, w);
      configure_thread(2);
      EXPECT_TRUE(kernels::linear(x, w).equal(alone));
      configure_thread(1);
    }
  });
}

TEST_F(LinearTest, InfinitiesAndNaNReachTheResult) {
  on_each([] {
    for (const std::int64_t rows : {2, 50}) {
      const at::Tensor x = at::full({rows, 40}, 1, at::TensorOptions(at::kBFloat16));
      const at::Tensor w = at::full({3, 40}, 1, at::TensorOptions(at::kBFloat16));
      w[0][7] = std::numeric_limits<float>::infinity();
      w[1][39] = std::numeric_limits<float>::quiet_NaN();
      const at::Tensor y = kernels::linear(x, w);
      EXPECT_TRUE(y.select(1, 0).isinf().all().item<bool>() && y.select(1, 1).isnan().all().item<bool>());
      EXPECT_TRUE(y.select(1, 2).eq(40).all().item<bool>());
    }
  });
}

using EmbeddingTest = OnEveryInstructionSet;

TEST_F(EmbeddingTest, PicksAndAccumulatesTheRowsOfThisRankAlone) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor tokens = at::tensor(std::vector<std::int64_t>{3, 9, 4, 4, 12, 3}).view({3, 2});
      const at::Tensor weight = at::randn({5, 19}).to(dtype), dy = at::randn({3, 2, 19}).to(dtype);  // tokens 4 to 8
      const at::Tensor out = kernels::embedding(tokens, weight, 4);
      EXPECT_TRUE(out[1][0].equal(weight[0]) && out[1][1].equal(weight[0]));
      EXPECT_TRUE(out[0].eq(0).all().item<bool>() && out[2].eq(0).all().item<bool>());
      const at::Tensor grad = at::randn({5, 19}).to(dtype), before = grad.clone();
      embedding_backward(grad, tokens, dy, 4);
      EXPECT_TRUE(grad[0].equal(before[0] + dy[1][0] + dy[1][1]));
      EXPECT_TRUE(grad.narrow(0, 1, 4).equal(before.narrow(0, 1, 4)));
    }
  });
}

}  // namespace
}  // namespace megatron::kernels
