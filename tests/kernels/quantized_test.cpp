#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/round.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/kernels/runtime.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

namespace megatron::kernels {
namespace {

/// Bodies run on the reference too, and once more with AMX's tiles emulated, which take 16 rows at once.
class QuantizedTest : public OnEveryInstructionSet {
 protected:
  template <class Body>
  void on_each_unit(const Body& body) {
    on_each_and_the_reference(body);
    SCOPED_TRACE("emulated tiles");
    force_instruction_set("auto");
    cpu::emulate_tiles(true);
    body();
    cpu::emulate_tiles(false);
  }
};

constexpr GgufType kTypes[] = {GgufType::Q8_0, GgufType::Q4_0, GgufType::Q4_1};

/// Rows of blocks whose scales differ by far, one of zeros among them.
at::Tensor weights(std::int64_t n, std::int64_t k) {
  const at::Tensor w = at::randn({n, k});
  w.narrow(1, 0, kQuantizedBlock).mul_(1e-2);
  w.select(0, n / 2).narrow(0, k - kQuantizedBlock, kQuantizedBlock).zero_();
  return w;
}

/// [.., k] as [.., k / 32, 32].
at::Tensor blocks_of(const at::Tensor& x) { return x.unflatten(-1, {x.size(-1) / kQuantizedBlock, kQuantizedBlock}); }

/// What x [rows, k] becomes, in float64: each block 127 levels of its largest number on both sides of 0.
at::Tensor rounded_inputs(const at::Tensor& x) {
  const at::Tensor blocks = blocks_of(x.to(at::kFloat)), largest = blocks.abs().amax(-1, true);
  const at::Tensor inverse = at::where(largest > 0, 127 / largest, at::zeros_like(largest));
  return (at::round(blocks * inverse).to(at::kDouble) * (largest / 127).to(at::kDouble)).flatten(-2);
}

TEST_F(QuantizedTest, EachNumberIsWithinHalfALevelOfWhatItWas) {
  const at::Tensor w = weights(37, 96), blocks = blocks_of(w), largest = blocks.abs().amax(-1, true);
  for (const GgufType type : kTypes) {
    // Half a level, of Q4_0, which has -8 and not 8, a whole one; and what scales lose in half precision.
    const at::Tensor span = blocks.amax(-1, true) - blocks.amin(-1, true);
    const at::Tensor level = type == GgufType::Q8_0 ? largest / 127 : type == GgufType::Q4_0 ? largest / 8 : span / 15;
    const at::Tensor bound = level * (type == GgufType::Q4_0 ? 1 : 0.5) + (largest + span) / 2048 + 1e-7;
    EXPECT_TRUE((blocks_of(quantize(w, type, "w").widened(at::kFloat)) - blocks).abs().le(bound).all().item<bool>());
  }
}

TEST_F(QuantizedTest, WhatIsQuantizedAgainStaysAsItIs) {
  for (const GgufType type : kTypes) {
    const QuantizedMatrix q = quantize(weights(9, 64), type, "w");
    const QuantizedMatrix again = quantize(q.widened(at::kFloat), type, "again");
    EXPECT_TRUE(at::equal(q.levels, again.levels) && at::equal(q.scales, again.scales)) << static_cast<int>(type);
  }
}

TEST_F(QuantizedTest, WideningRoundsOnceAndTakesAnyRows) {
  for (const GgufType type : kTypes) {
    const QuantizedMatrix q = quantize(weights(37, 2080), type, "w");
    const at::Tensor wide = q.widened(at::kFloat);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble})
      EXPECT_TRUE(at::equal(q.widened(dtype), wide.to(dtype))) << dtype;
    EXPECT_TRUE(at::equal(q.widened(5, 20, at::kFloat), wide.narrow(0, 5, 20)));
  }
}

TEST_F(QuantizedTest, AProductIsThatOfTheRoundedInputs) {
  for (const GgufType type : kTypes)
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 32}, {37, 96}, {130, 1056}, {7, 4096}}) {
      const QuantizedMatrix q = quantize(weights(n, k), type, "w");
      for (const std::int64_t rows : {1, 2, 3, 5, 7, 8, 16, 45})
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
          const at::Tensor x = weights(rows, k).to(dtype);
          const at::Tensor truth = at::matmul(rounded_inputs(x), q.widened(at::kDouble).t());
          at::Tensor first;
          on_each_unit([&] {
            SCOPED_TRACE(testing::Message()
                         << static_cast<int>(type) << ": " << n << " x " << k << ", " << rows << " rows of " << dtype);
            const at::Tensor y = kernels::linear(x.view({1, rows, k}), q);
            EXPECT_EQ(y.sizes(), (at::IntArrayRef{1, rows, n}));
            EXPECT_EQ(y.scalar_type(), dtype);
            EXPECT_LT(relative_error(y[0], truth), dtype == at::kBFloat16 ? 4e-3 : dtype == at::kHalf ? 5e-4 : 2e-6);
            if (!first.defined()) first = y;
            EXPECT_TRUE(at::equal(y, first)) << "the bits of the first instruction set";
          });
        }
    }
}

TEST_F(QuantizedTest, RowsGetTheirBitsAloneAndByAnyThreads) {
  for (const GgufType type : kTypes) {
    const QuantizedMatrix q = quantize(weights(700, 320), type, "w");  // several pieces
    const at::Tensor x = at::randn({600, 320});                        // several times what a piece has in its cache
    on_each_unit([&] {
      const at::Tensor all = kernels::linear(x, q);
      for (const std::int64_t row : {0, 7, 8, 300, 592, 599})
        EXPECT_TRUE(at::equal(kernels::linear(x.narrow(0, row, 1), q), all.narrow(0, row, 1))) << row;
      configure_thread(3);
      EXPECT_TRUE(at::equal(kernels::linear(x, q), all));
      configure_thread(1);
      for (const std::int64_t rows : {15, 16, 40}) {
        const at::Tensor y = at::empty({rows, 700}), scratch = at::empty({rows, 320});
        few_rows_linear(y, x.narrow(0, 8, rows), q, scratch);
        EXPECT_TRUE(at::equal(y, all.narrow(0, 8, rows))) << rows;
      }
    });
  }
}

TEST_F(QuantizedTest, LayersReadWhatTheirWeightWasReplacedBy) {
  for (const GgufType type : kTypes)
    on_each_and_the_reference([&] {
      const auto q = std::make_shared<const QuantizedMatrix>(quantize(weights(64, 96), type, "w"));
      const at::Tensor wide = q->widened(at::kFloat), unread = at::full({1}, std::nanf("")).expand({64, 96});
      PackedWeight packed;
      packed.replace(q);
      for (const std::int64_t rows : {1, 40}) {
        const at::Tensor x = at::randn({rows, 96}), bias = at::randn({64}), rounded = rounded_inputs(x).to(at::kFloat);
        const auto near = [](const at::Tensor& a, const at::Tensor& b) { return relative_error(a, b) < 2e-6; };
        EXPECT_TRUE(near(kernels::linear(x, unread, &packed, bias), kernels::linear(rounded, wide, nullptr, bias)));
        const auto got = linear_activation(x, unread, bias, Activation::Silu, true, &packed);
        const auto wanted = linear_activation(rounded, wide, bias, Activation::Silu, true);
        EXPECT_TRUE(near(got.u, wanted.u) && near(got.y, wanted.y));
      }
    });
  force_instruction_set("auto");
  PackedWeight packed;
  packed.replace(std::make_shared<const QuantizedMatrix>(quantize(weights(4, 32), GgufType::Q8_0, "w")));
  EXPECT_THROW(linear_input_gradient(at::randn({2, 4}), at::randn({4, 32}), &packed), std::logic_error);
}

TEST_F(QuantizedTest, EmbeddingsAreRowsAndZerosOutside) {
  const QuantizedMatrix q = quantize(weights(6, 64), GgufType::Q8_0, "w");
  const at::Tensor tokens =
      at::tensor(std::vector<std::int64_t>{5, 0, 10, 11}, at::kLong).view({2, 2});  // rows 5 … 10 are this rank's
  const at::Tensor y = embedding(tokens, q, 5, at::kFloat);
  EXPECT_TRUE(at::equal(y[0][0], q.widened(at::kFloat)[0]));
  EXPECT_TRUE(at::equal(y[1][0], q.widened(at::kFloat)[5]));
  EXPECT_EQ(y[0][1].abs().sum().item<float>() + y[1][1].abs().sum().item<float>(), 0);
}

TEST_F(QuantizedTest, WhatIsNotANumberIsSeenInItsRowAlone) {
  for (const GgufType type : kTypes) {
    const QuantizedMatrix q = quantize(weights(20, 96), type, "w");
    on_each_unit([&] {
      for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        for (const std::int64_t rows : {3, 16}) {
          const at::Tensor x = at::randn({rows, 96}), before = kernels::linear(x, q);
          x[1][40] = value;
          const at::Tensor y = kernels::linear(x, q);
          EXPECT_TRUE(at::isnan(y[1]).all().item<bool>());
          EXPECT_TRUE(at::equal(y[0], before[0]) && at::equal(y.narrow(0, 2, rows - 2), before.narrow(0, 2, rows - 2)));
        }
      }
      EXPECT_EQ(kernels::linear(at::full({1, 96}, 1e-35F), q).abs().max().item<float>(), 0) << "too small for a scale";
    });
  }
}

TEST_F(QuantizedTest, NumbersThatHaveNoScaleAreRefused) {
  for (const GgufType type : kTypes)
    for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e8F}) {
      const at::Tensor w = at::zeros({2, 64});
      w[1][40] = value;
      EXPECT_THROW(quantize(w, type, "w"), ConfigError) << value;
    }
}

}  // namespace
}  // namespace megatron::kernels
