#include "megatron/kernels/cuda/grouped.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>

#include "megatron/kernels/emulated/operators.h"
#include "megatron/kernels/operators.h"
#include "tests/kernels/compare.h"
#include "tests/testing/cuda.h"

// Products of experts in one call of ATen: who is asked, and that it gives what one product after the other gives.
namespace megatron::kernels {
namespace {

constexpr cuda::GroupedCall kCall{.capability = 9,
                                  .bfloat16 = true,
                                  .aligned = true,
                                  .n = 16,
                                  .k = 24,
                                  .distance = 16 * 24 + 8,
                                  .groups = 4,
                                  .used = 3};

TEST(GroupedChoice, IsOneCallWhereAtenHasAKernelThatReadsTheWeightsWhereTheyLie) {
  EXPECT_TRUE(cuda::grouped_at_once(kCall));
  const auto without = [](const std::function<void(cuda::GroupedCall&)>& change) {
    cuda::GroupedCall call = kCall;
    change(call);
    return !cuda::grouped_at_once(call);
  };
  EXPECT_FALSE(without([](auto& c) { c.capability = 10; }));
  EXPECT_TRUE(without([](auto& c) { c.capability = 8; })) << "Ampere: one after the other, behind a wait";
  EXPECT_TRUE(without([](auto& c) { c.capability = 12; })) << "Blackwell of workstations";
  EXPECT_TRUE(without([](auto& c) { c.bfloat16 = false; }));
  EXPECT_TRUE(without([](auto& c) { c.aligned = false; }));
  EXPECT_TRUE(without([](auto& c) { c.used = 1; })) << "one product is one launch too";
  EXPECT_FALSE(without([](auto& c) { c.groups = 1023; }));
  EXPECT_TRUE(without([](auto& c) { c.groups = 1024; })) << "ATen throws";
  EXPECT_TRUE(without([](auto& c) { c.distance = 0; }));
  EXPECT_TRUE(without([](auto& c) { c.distance = 16 * 24 - 8; })) << "they overlap";
  EXPECT_TRUE(without([](auto& c) { c.distance += 4; }));
  EXPECT_TRUE(without([](auto& c) { c.n = 12; }));
  EXPECT_TRUE(without([](auto& c) { c.k = 20; }));
}

/// Weights [n, k] in one buffer, each `distance` behind the one before.
std::vector<at::Tensor> weights_in(const at::Tensor& buffer, std::int64_t count, std::int64_t n, std::int64_t k,
                                   std::int64_t distance) {
  std::vector<at::Tensor> weights;
  for (std::int64_t g = 0; g < count; ++g) weights.push_back(buffer.narrow(0, 8 + g * distance, n * k).view({n, k}));
  return weights;
}

TEST(GroupedChoice, SeesWhereWeightsLie) {
  const at::Tensor buffer = at::zeros({4000}, at::kBFloat16), other = at::zeros({400}, at::kBFloat16);
  auto weights = weights_in(buffer, 4, 16, 24, 500);
  EXPECT_EQ(cuda::distance_of(weights), 500);
  EXPECT_EQ(cuda::distance_of({weights.rbegin(), weights.rend()}), 0) << "the first one last";
  std::swap(weights[1], weights[2]);
  EXPECT_EQ(cuda::distance_of(weights), 0);
  weights = weights_in(buffer, 2, 16, 24, 500);
  weights.push_back(other.narrow(0, 0, 16 * 24).view({16, 24}));
  EXPECT_EQ(cuda::distance_of(weights), 0) << "another buffer";
  EXPECT_EQ(
      cuda::distance_of({buffer.narrow(0, 0, 384).view({24, 16}).t(), buffer.narrow(0, 500, 384).view({24, 16}).t()}),
      0);
}

class GroupedProducts {
 public:
  GroupedProducts(at::Device device, std::int64_t distance) {
    const auto bf16 = at::TensorOptions().dtype(at::kBFloat16);
    const at::Tensor buffer = at::randn({5 * distance}, at::kFloat).to(device, at::kBFloat16);
    groups_ = {.weights = weights_in(buffer, 4, 16, 24, distance), .offsets = {0, 5, 5, 6, 20}};
    x_ = at::randn({20, 24}, at::kFloat).to(bf16.device(device));
    dy_ = at::randn({20, 16}, at::kFloat).to(bf16.device(device));
    for (int g = 0; g < 4; ++g) biases_.push_back(at::randn({16}, at::kFloat).to(bf16.device(device)));
  }

  /// By `own` what each group's product is in float64.
  void expect_by(const Operators& own) const {
    for (const bool biased : {false, true}) {
      Groups groups = groups_;
      if (biased) groups.biases = biases_;
      const at::Tensor truth = by_group([&](std::size_t g, const at::Tensor& x, const at::Tensor&) {
        const at::Tensor y = x.mm(wide(groups_.weights[g]).t());
        return biased ? y + wide(biases_[g]) : y;
      });
      expect_near(own.grouped_linear(x_, groups), truth);
      const ActivatedOutput plain = own.grouped_linear_activation(x_, groups, Activation::GeluTanh, false);
      expect_near(plain.u, truth);
      expect_near(plain.y, reference_operators().activation(truth, Activation::GeluTanh));
      const ActivatedOutput gated = own.grouped_linear_activation(x_, groups, Activation::Silu, true);
      expect_near(gated.u, truth);
      expect_near(gated.y, reference_operators().gated_activation(truth, Activation::Silu));
    }
    expect_near(own.grouped_input_gradient(dy_, groups_),
                by_group([&](std::size_t g, const at::Tensor&, const at::Tensor& dy) {
                  return dy.mm(wide(groups_.weights[g]));
                }));
  }
  bool at_once() const { return cuda::grouped_at_once(cuda::grouped_call(x_, groups_, 9)); }

 private:
  static void expect_near(const at::Tensor& got, const at::Tensor& truth) {
    ASSERT_EQ(got.sizes(), truth.sizes());
    EXPECT_LE(relative_error(got.cpu(), truth.cpu()), 4 * unit_roundoff(at::kBFloat16));
  }
  template <class Product>
  at::Tensor by_group(const Product& product) const {
    std::vector<at::Tensor> parts;
    for_each_group(groups_, [&](std::size_t g, std::int64_t begin, std::int64_t rows) {
      parts.push_back(product(g, wide(x_).narrow(0, begin, rows), wide(dy_).narrow(0, begin, rows)));
    });
    return at::cat(parts);
  }

  Groups groups_;
  at::Tensor x_, dy_;
  std::vector<at::Tensor> biases_;
};

void expect_products(at::Device device) {
  const Operators& own = device.is_cpu() ? emulated_operators() : cuda_operators();
  const GroupedProducts together(device, 400), apart(device, 396);
  EXPECT_TRUE(together.at_once());
  together.expect_by(own);
  EXPECT_FALSE(apart.at_once());
  apart.expect_by(own);
}

TEST(GroupedProducts, AreThoseOfEachGroupOnAnEmulatedGpu) { expect_products(at::kCPU); }

TEST(GroupedProducts, AreThoseOfEachGroupOnCuda) {
  NEEDS_A_GPU();
  expect_products(at::kCUDA);
}

}  // namespace
}  // namespace megatron::kernels
