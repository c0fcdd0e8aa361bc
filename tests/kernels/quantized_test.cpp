#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
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
#include "megatron/kernels/quantized/q8_0.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

namespace megatron::kernels {
namespace {

using QuantizedTest = OnEveryInstructionSet;

/// Rows of blocks whose scales differ by far, one of zeros among them.
at::Tensor weights(std::int64_t n, std::int64_t k) {
  const at::Tensor w = at::randn({n, k});
  w.narrow(1, 0, kQuantizedBlock).mul_(1e-2);
  w.select(0, n / 2).narrow(0, k - kQuantizedBlock, kQuantizedBlock).zero_();
  return w;
}

TEST_F(QuantizedTest, EachNumberIsWithinHalfALevelOfWhatItWas) {
  const at::Tensor w = weights(7, 96);
  const QuantizedMatrix q = quantize(w, "w");
  // Half a level, and what rounding the scale to half precision moves the largest level, 127, by.
  const at::Tensor bound = q.scales.to(at::kFloat).repeat_interleave(kQuantizedBlock, 1) * (0.5 + 127.0 / 2048) + 1e-7;
  on_each_and_the_reference([&] { EXPECT_TRUE((q.widened(at::kFloat) - w).abs().le(bound).all().item<bool>()); });
  EXPECT_EQ(q.levels.abs().amax().item<std::int8_t>(), 127);
}

TEST_F(QuantizedTest, WhatIsQuantizedAgainStaysAsItIs) {
  const QuantizedMatrix q = quantize(weights(9, 64), "w"), again = quantize(q.widened(at::kFloat), "again");
  EXPECT_TRUE(at::equal(q.levels, again.levels));
  EXPECT_TRUE(at::equal(q.scales, again.scales));
}

TEST_F(QuantizedTest, WideningIsTheSameOnEveryInstructionSet) {
  const QuantizedMatrix q = quantize(weights(33, 2080), "w");
  const at::Tensor truth = q.levels.to(at::kFloat) * q.scales.to(at::kFloat).repeat_interleave(kQuantizedBlock, 1);
  on_each_and_the_reference([&] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
      EXPECT_TRUE(at::equal(q.widened(dtype), truth.to(dtype))) << dtype;
    EXPECT_TRUE(at::equal(q.widened(5, 20, at::kFloat), truth.narrow(0, 5, 20)));
  });
}

TEST_F(QuantizedTest, FewRowsGiveTheBitsOfTheWidenedMatrix) {
  on_each([] {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 32}, {37, 96}, {130, 1056}, {7, 4096}}) {
      const QuantizedMatrix q = quantize(weights(n, k), "w");
      const at::Tensor wide = q.widened(at::kFloat);
      for (const std::int64_t rows : {1, 2, 3, 5, 16}) {
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
          SCOPED_TRACE(testing::Message() << n << " x " << k << ", " << rows << " rows of " << dtype);
          const at::Tensor x = at::randn({rows, k}).to(dtype), y = at::empty({rows, n}, dtype);
          few_rows_linear(y, x, wide, at::empty({rows, k}, at::kFloat));
          const at::Tensor all = kernels::linear(x, q);
          EXPECT_TRUE(at::equal(all, y));
          EXPECT_TRUE(at::equal(kernels::linear(x.narrow(0, rows - 1, 1), q), all.narrow(0, rows - 1, 1)));
        }
      }
    }
  });
}

TEST_F(QuantizedTest, ManyRowsAreTheProductWithTheWidenedMatrix) {
  on_each_and_the_reference([] {
    const QuantizedMatrix q = quantize(weights(700, 1600), "w");  // several pieces
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor x = at::randn({2, 20, 1600}).to(dtype), y = kernels::linear(x, q);
      EXPECT_EQ(y.sizes(), (at::IntArrayRef{2, 20, 700}));
      EXPECT_LT(relative_error(y.to(at::kDouble), at::matmul(x.to(at::kDouble), q.widened(dtype).to(at::kDouble).t())),
                dtype == at::kBFloat16 ? 4e-3 : 2e-6);
    }
  });
}

TEST_F(QuantizedTest, LayersReadWhatTheirWeightWasReplacedBy) {
  on_each_and_the_reference([] {
    const auto q = std::make_shared<const QuantizedMatrix>(quantize(weights(64, 96), "w"));
    const at::Tensor wide = q->widened(at::kFloat), unread = at::full({1}, std::nanf("")).expand({64, 96});
    PackedWeight packed;
    packed.replace(q);
    for (const std::int64_t rows : {1, 40}) {
      const at::Tensor x = at::randn({rows, 96}), bias = at::randn({64});
      const auto near = [](const at::Tensor& a, const at::Tensor& b) { return relative_error(a, b) < 2e-6; };
      EXPECT_TRUE(near(kernels::linear(x, unread, &packed, bias), kernels::linear(x, wide, nullptr, bias)));
      const auto got = linear_activation(x, unread, bias, Activation::Silu, true, &packed);
      const auto wanted = linear_activation(x, wide, bias, Activation::Silu, true);
      EXPECT_TRUE(near(got.u, wanted.u) && near(got.y, wanted.y));
    }
  });
  force_instruction_set("auto");
  PackedWeight packed;
  packed.replace(std::make_shared<const QuantizedMatrix>(quantize(weights(4, 32), "w")));
  EXPECT_THROW(linear_input_gradient(at::randn({2, 4}), at::randn({4, 32}), &packed), std::logic_error);
}

TEST_F(QuantizedTest, EmbeddingsAreRowsAndZerosOutside) {
  const QuantizedMatrix q = quantize(weights(6, 64), "w");
  const at::Tensor tokens =
      at::tensor(std::vector<std::int64_t>{5, 0, 10, 11}, at::kLong).view({2, 2});  // rows 5 … 10 are this rank's
  on_each_and_the_reference([&] {
    const at::Tensor y = embedding(tokens, q, 5, at::kFloat);
    EXPECT_TRUE(at::equal(y[0][0], q.widened(at::kFloat)[0]));
    EXPECT_TRUE(at::equal(y[1][0], q.widened(at::kFloat)[5]));
    EXPECT_EQ(y[0][1].abs().sum().item<float>() + y[1][1].abs().sum().item<float>(), 0);
  });
}

TEST_F(QuantizedTest, NumbersThatHaveNoScaleAreRefused) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e8F}) {
    const at::Tensor w = at::zeros({2, 64});
    w[1][40] = value;
    EXPECT_THROW(quantize(w, "w"), ConfigError) << value;
  }
}

}  // namespace
}  // namespace megatron::kernels
