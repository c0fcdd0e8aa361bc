// Kernels beside the libtorch operation of the same meaning, at the shapes of GPT-2 124M, one sample of 1024 tokens.
// Run with --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
// --benchmark_report_aggregates_only=true and compare medians: a shared machine drifts. The argument is the number of
// threads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kTokens = 1024, kHeads = 12, kHeadSize = 64;
constexpr double kAttentionFlops = 2.0 * kTokens * kTokens * kHeads * kHeadSize;  // causal half of two products

void rate(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void threads(benchmark::internal::Benchmark* benchmark) {
  benchmark->Unit(benchmark::kMillisecond)->Arg(1)->Arg(2)->UseRealTime()->MeasureProcessCPUTime();
}

struct Attention {
  at::Tensor qkv = at::randn({kTokens, 1, kHeads, 3 * kHeadSize}), dqkv = at::empty(qkv.sizes());
  at::Tensor dout = at::randn({kTokens, 1, kHeads, kHeadSize});
  static at::Tensor part(const at::Tensor& x, int i) { return x.narrow(3, i * kHeadSize, kHeadSize); }
  static at::Tensor heads_first(const at::Tensor& x) { return x.permute({1, 2, 0, 3}); }
};

void BM_AttentionForward(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a;
  for (auto _ : state) benchmark::DoNotOptimize(attention(a.part(a.qkv, 0), a.part(a.qkv, 1), a.part(a.qkv, 2), {}));
  rate(state, kAttentionFlops);
}
BENCHMARK(BM_AttentionForward)->Apply(threads);

void BM_AttentionForwardTorch(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a;
  const auto x = [&](int i) { return a.heads_first(a.part(a.qkv, i)); };
  for (auto _ : state)
    benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu(x(0), x(1), x(2), 0.0, true));
  rate(state, kAttentionFlops);
}
BENCHMARK(BM_AttentionForwardTorch)->Apply(threads);

void BM_AttentionBackward(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a;
  const auto forward = attention(a.part(a.qkv, 0), a.part(a.qkv, 1), a.part(a.qkv, 2), {});
  for (auto _ : state) {
    attention_backward(a.dout, a.part(a.qkv, 0), a.part(a.qkv, 1), a.part(a.qkv, 2), forward, {}, a.part(a.dqkv, 0),
                       a.part(a.dqkv, 1), a.part(a.dqkv, 2));
  }
  rate(state, 2.5 * kAttentionFlops);
}
BENCHMARK(BM_AttentionBackward)->Apply(threads);

void BM_AttentionBackwardTorch(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a;
  const auto x = [&](int i) { return a.heads_first(a.part(a.qkv, i)); };
  const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(x(0), x(1), x(2), 0.0, true);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu_backward(a.heads_first(a.dout), x(0), x(1),
                                                                                      x(2), out, logsumexp, 0.0, true));
  }
  rate(state, 2.5 * kAttentionFlops);
}
BENCHMARK(BM_AttentionBackwardTorch)->Apply(threads);

}  // namespace
}  // namespace megatron::kernels

int main(int argc, char** argv) {
  megatron::kernels::install_caching_allocator();
  const c10::NoGradGuard no_grad;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("instruction set", megatron::kernels::instruction_set());
  benchmark::RunSpecifiedBenchmarks();
}
