// The products of 8 experts in one call, of each expert alone, and one product of as many rows, in turns within each
// round, so that a busy machine slows all. Counters: their rates, medians over the rounds.
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

/// Rows of the experts: unevenly loaded, 4096 in all.
const std::vector<std::int64_t> kOffsets = {0, 700, 1012, 1524, 2100, 2228, 2996, 3496, 4096};
constexpr std::int64_t kHidden = 512, kInner = 3072;

struct Experts {
  at::Tensor x, dy;
  std::vector<PackedWeight> packed = std::vector<PackedWeight>(kOffsets.size() - 1);
  Groups groups{.weights = {}, .offsets = kOffsets}, gradients{.weights = {}, .offsets = kOffsets};
  std::vector<double> betas = std::vector<double>(kOffsets.size() - 1, 1.0);

  explicit Experts(at::ScalarType dtype)
      : x(at::randn({kOffsets.back(), kHidden}).to(dtype)), dy(at::randn({kOffsets.back(), kInner}).to(dtype)) {
    configure_thread(2);
    for (PackedWeight& each : packed) {
      groups.weights.push_back(at::randn({kInner, kHidden}).to(dtype));
      gradients.weights.push_back(at::zeros({kInner, kHidden}));
      groups.packed.push_back(&each);
    }
  }
  at::Tensor part(const at::Tensor& rows, std::size_t g) const {
    return rows.narrow(0, kOffsets[g], kOffsets[g + 1] - kOffsets[g]);
  }
};

using Work = std::function<void()>;

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void in_turns(benchmark::State& state, const Work& grouped, const Work& alone, const Work& whole) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds[3];
  const Work* const all[] = {&grouped, &alone, &whole};
  for (const Work* work : all) (*work)();
  for (auto _ : state)
    for (int i = 0; i < 3; ++i) {
      const auto start = Clock::now();
      (*all[i])();
      seconds[i].push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  const double flops = 2e-9 * static_cast<double>(kOffsets.back() * kHidden * kInner);
  const char* const names[] = {"grouped", "alone", "whole"};
  for (int i = 0; i < 3; ++i) state.counters[names[i]] = flops / median(seconds[i]);
}

void BM_GroupedLinear(benchmark::State& state, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  Experts e(dtype);
  in_turns(
      state, [&] { benchmark::DoNotOptimize(grouped_linear(e.x, e.groups)); },
      [&] {
        for (std::size_t g = 0; g + 1 < kOffsets.size(); ++g)
          benchmark::DoNotOptimize(linear(e.part(e.x, g), e.groups.weights[g], &e.packed[g]));
      },
      [&] { benchmark::DoNotOptimize(linear(e.x, e.groups.weights[0], &e.packed[0])); });
}

void BM_GroupedInputGradient(benchmark::State& state, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  Experts e(dtype);
  in_turns(
      state, [&] { benchmark::DoNotOptimize(grouped_input_gradient(e.dy, e.groups)); },
      [&] {
        for (std::size_t g = 0; g + 1 < kOffsets.size(); ++g)
          benchmark::DoNotOptimize(linear_input_gradient(e.part(e.dy, g), e.groups.weights[g], &e.packed[g]));
      },
      [&] { benchmark::DoNotOptimize(linear_input_gradient(e.dy, e.groups.weights[0], &e.packed[0])); });
}

void BM_GroupedWeightGradient(benchmark::State& state, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  Experts e(dtype);
  in_turns(
      state, [&] { grouped_weight_gradient(e.gradients, e.dy, e.x, e.betas); },
      [&] {
        for (std::size_t g = 0; g + 1 < kOffsets.size(); ++g)
          linear_weight_gradient(e.gradients.weights[g], e.part(e.dy, g), e.part(e.x, g), 1);
      },
      [&] { linear_weight_gradient(e.gradients.weights[0], e.dy, e.x, 1); });
}

BENCHMARK_CAPTURE(BM_GroupedLinear, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedLinear, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedInputGradient, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedInputGradient, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedWeightGradient, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedWeightGradient, bf16, at::kBFloat16)->UseRealTime();

}  // namespace
}  // namespace megatron::kernels

BENCHMARK_MAIN();
