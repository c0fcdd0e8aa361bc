// Low-rank matrices beside a layer's product: the truth are products in float64.
#include "megatron/kernels/low_rank/low_rank.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "megatron/kernels/matmul.h"
#include "megatron/kernels/quantized/blocks.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

namespace megatron::kernels {
namespace {

class LowRankTest : public OnEveryInstructionSet {};

/// Half a unit in the last place of a stored result (2^-8, 2^-11), and the float32 sums.
double bound(at::ScalarType stored) { return stored == at::kBFloat16 ? 4.0e-3 : stored == at::kHalf ? 5.0e-4 : 1e-6; }

constexpr std::int64_t kInputs = 83, kOutputs = 3 * 70;
constexpr double kScale = 1.5;

/// Of a layer whose outputs are 3 groups of 70: 40 of each, then 24, which leaves 6 alone.
std::vector<LowRank::Part> random_parts(at::ScalarType dtype, std::int64_t rank, bool with_factors) {
  const auto part = [&](std::int64_t own, std::int64_t offset, std::int64_t length) {
    return LowRank::Part{.a = at::randn({own, kInputs}).div(9).to(dtype),
                         .b = at::randn({3 * length, own}).to(dtype),
                         .factor = with_factors ? at::rand({3 * length}).add(0.5) : at::Tensor(),
                         .groups = 3,
                         .group_outputs = 70,
                         .offset = offset,
                         .length = length};
  };
  return {part(rank, 0, 40), part(rank + 3, 40, 24)};
}

/// What `parts` make of y, in float64.
at::Tensor truth(const at::Tensor& y, const at::Tensor& x, const std::vector<LowRank::Part>& parts) {
  at::Tensor sum = wide(y).clone();
  for (const LowRank::Part& part : parts) {
    const at::Tensor outputs = sum.view({-1, part.groups, part.group_outputs}).narrow(2, part.offset, part.length);
    outputs.add_(at::matmul(at::matmul(wide(x), wide(part.a).t()), wide(part.b).t()).view(outputs.sizes()), kScale);
    if (part.factor.defined()) outputs.mul_(wide(part.factor).view({part.groups, part.length}));
  }
  return sum;
}

TEST_F(LowRankTest, AddsToEachRowWhatItsOwnMatricesMakeOfIt) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const std::int64_t rank : {1, 16, 33}) {
        const auto one = random_parts(dtype, rank, false), other = random_parts(dtype, rank + 1, true);
        const LowRank first(one, kScale), second(other, kScale);
        const at::Tensor x = at::randn({9, kInputs}).to(dtype), before = at::randn({9, kOutputs}).to(dtype);
        const std::vector<std::int64_t> of_first = {1, 2, 3, 5, 8}, of_second = {0, 7};
        const std::vector<LowRankRows> groups = {{&first, of_first}, {&second, of_second}};
        const at::Tensor y = before.clone(), want_first = truth(before, x, one), want_second = truth(before, x, other);
        at::Tensor scratch;
        add_low_rank(y, x, groups, scratch);
        for (const std::int64_t row : of_first)
          EXPECT_LT(relative_error(y[row], want_first[row]), bound(dtype)) << dtype << " " << rank << " " << row;
        for (const std::int64_t row : of_second)
          EXPECT_LT(relative_error(y[row], want_second[row]), bound(dtype)) << dtype << " " << rank << " " << row;
        for (const std::int64_t row : {4, 6}) EXPECT_TRUE(y[row].equal(before[row])) << "a row without matrices";
        EXPECT_TRUE(y.view({9, 3, 70}).narrow(2, 64, 6).equal(before.view({9, 3, 70}).narrow(2, 64, 6)));
      }
  });
}

TEST_F(LowRankTest, ARowGetsTheBitsThatItGetsAloneOnAnyNumberOfThreads) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const LowRank matrices(random_parts(dtype, 16, true), kScale);
      const at::Tensor x = at::randn({19, kInputs}).to(dtype), before = at::randn({19, kOutputs}).to(dtype);
      const std::vector<LowRankRows> all = {{&matrices, {}}};
      at::Tensor scratch;
      std::vector<at::Tensor> got;
      for (const int threads : {1, 2, 5}) {
        configure_thread(threads);
        got.push_back(before.clone());
        add_low_rank(got.back(), x, all, scratch);
        EXPECT_TRUE(got.back().equal(got.front())) << dtype << ", threads " << threads;
      }
      configure_thread(1);
      for (std::int64_t row = 0; row < 19; ++row) {
        const at::Tensor alone = before.narrow(0, row, 1).clone();
        add_low_rank(alone, x.narrow(0, row, 1), all, scratch);
        EXPECT_TRUE(alone[0].equal(got.front()[row])) << dtype << ", row " << row;
      }
    }
  });
}

TEST_F(LowRankTest, BehindAProductGivesTheBitsOfBothApart) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const LowRank one(random_parts(dtype, 16, true), kScale), other(random_parts(dtype, 4, false), kScale);
      const at::Tensor w = at::randn({kOutputs, kInputs}).to(dtype), x = at::randn({5, kInputs}).to(dtype),
                       wide_x = at::empty({5 * kInputs}, at::kFloat);
      const std::vector<std::int64_t> of_one = {1, 4}, of_other = {2};
      const std::vector<std::vector<LowRankRows>> calls = {{{&one, {}}}, {{&one, of_one}, {&other, of_other}}};
      for (const std::vector<LowRankRows>& groups : calls) {
        const at::Tensor y = at::empty({5, kOutputs}, x.options()), apart = at::empty({5, kOutputs}, x.options());
        at::Tensor scratch;
        few_rows_linear(y, x, w, wide_x, groups, scratch);
        few_rows_linear(apart, x, w, wide_x);
        add_low_rank(apart, x, groups, scratch);
        EXPECT_TRUE(y.equal(apart)) << dtype;
      }
    }
  });
}

TEST_F(LowRankTest, BehindAProductOfBlocksGivesTheBitsOfBothApartOnAnyNumberOfThreads) {
  constexpr std::int64_t kDepth = 96, kRows = 20;  // rows of a wide tile and of others
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const std::int64_t outputs : {kOutputs, std::int64_t{3 * 700}}) {  // one piece of work, and several
        const QuantizedMatrix w = quantize(at::randn({outputs, kDepth}), GgufType::Q8_0, "w");
        const std::int64_t own = outputs / 3;
        const auto part = [&](std::int64_t offset, std::int64_t length) {  // of all three groups, so to all pieces
          return LowRank::Part{.a = at::randn({16, kDepth}).div(9).to(dtype),
                               .b = at::randn({3 * length, 16}).to(dtype),
                               .factor = {},
                               .groups = 3,
                               .group_outputs = own,
                               .offset = offset,
                               .length = length};
        };
        const LowRank one({part(0, own - 30), part(own - 30, 24)}, kScale), other({part(5, own - 5)}, kScale);
        const std::vector<std::int64_t> of_one = {1, 4, 17, 19}, of_other = {2, 16};
        const std::vector<std::vector<LowRankRows>> calls = {{{&one, {}}}, {{&one, of_one}, {&other, of_other}}};
        const at::Tensor x = at::randn({kRows, kDepth}).to(dtype), wide_x = at::empty({kRows * kDepth}, at::kFloat),
                         y = at::empty({kRows, outputs}, x.options()), apart = at::empty({kRows, outputs}, x.options());
        for (const std::vector<LowRankRows>& groups : calls)
          for (const std::int64_t rows : {kRows, std::int64_t{1}}) {
            if (rows == 1 && !groups.front().rows.empty()) continue;
            const at::Tensor few_x = x.narrow(0, 0, rows), few_y = y.narrow(0, 0, rows),
                             few_apart = apart.narrow(0, 0, rows);
            at::Tensor scratch;
            configure_thread(1);
            few_rows_linear(few_apart, few_x, w, wide_x);
            add_low_rank(few_apart, few_x, groups, scratch);
            for (const int threads : {1, 2, 5}) {
              configure_thread(threads);
              few_y.zero_();
              few_rows_linear(few_y, few_x, w, wide_x, groups, scratch);
              EXPECT_TRUE(few_y.equal(few_apart)) << dtype << ", " << outputs << " outputs, threads " << threads;
            }
          }
      }
  });
  configure_thread(1);
}

TEST_F(LowRankTest, RefusesRowsAndLayersThatAreNotThere) {
  if (vector_instruction_sets().empty()) GTEST_SKIP() << "this machine has no AVX2";
  const LowRank matrices(random_parts(at::kFloat, 2, false), kScale);
  const at::Tensor x = at::ones({2, kInputs}), y = at::ones({2, kOutputs});
  const std::vector<std::int64_t> third = {2};
  const std::vector<LowRankRows> beyond = {{&matrices, third}}, all = {{&matrices, {}}};
  at::Tensor scratch;
  EXPECT_THROW(add_low_rank(y, x, beyond, scratch), std::logic_error);
  EXPECT_THROW(add_low_rank(y, at::ones({2, kInputs + 1}), all, scratch), std::logic_error);
  EXPECT_THROW(add_low_rank(y.to(at::kBFloat16), x.to(at::kBFloat16), all, scratch), std::logic_error);
  EXPECT_FALSE(takes_low_rank(x.to(at::kDouble)));
}

}  // namespace
}  // namespace megatron::kernels
