// Kernels beside the libtorch operation of the same meaning, at the shapes of GPT-2 124M, one sample of 1024 tokens.
// Run with --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
// --benchmark_report_aggregates_only=true and compare medians: a shared machine drifts. The argument is the number of
// threads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/normalization.h"
#include "megatron/kernels/optimizer.h"
#include "megatron/kernels/random.h"
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

// Elementwise kernels: bytes read and written a second, against what libtorch does in one call or several.
constexpr std::int64_t kHidden = 768, kFeedForward = 3072, kParameters = 124'475'904, kVocab = 50304, kChunk = 256;

void bytes(benchmark::State& state, double count) {
  state.counters["GB/s"] = benchmark::Counter(count * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void BM_BiasGelu(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const at::Tensor x = at::randn({kTokens, 1, kFeedForward}), bias = at::randn({kFeedForward});
  for (auto _ : state) benchmark::DoNotOptimize(bias_activation(x, bias, Activation::GeluTanh));
  bytes(state, 12.0 * kTokens * kFeedForward);
}
BENCHMARK(BM_BiasGelu)->Apply(threads);

void BM_BiasGeluTorch(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  at::Tensor x = at::randn({kTokens, 1, kFeedForward});
  const at::Tensor bias = at::randn({kFeedForward});
  for (auto _ : state) benchmark::DoNotOptimize(at::gelu(x.add_(bias), "tanh"));
  bytes(state, 12.0 * kTokens * kFeedForward);
}
BENCHMARK(BM_BiasGeluTorch)->Apply(threads);

void BM_LayerNormBackward(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const at::Tensor x = at::randn({kTokens, 1, kHidden}), w = at::randn({kHidden}), dw = at::empty({kHidden}),
                   db = at::empty({kHidden});
  const NormOutput norm = layer_norm(x, w, w, 1e-5);
  for (auto _ : state) benchmark::DoNotOptimize(layer_norm_backward(x, x, norm.mean, norm.rstd, w, dw, db, 0.0, x));
  bytes(state, 16.0 * kTokens * kHidden);
}
BENCHMARK(BM_LayerNormBackward)->Apply(threads);

void BM_BiasDropoutAddNorm(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const at::Tensor x = at::randn({kTokens, 1, kHidden}), w = at::randn({kHidden});
  const Dropout dropout{.p = 0.1, .key = 1, .sample_ids = at::zeros({1}, at::kLong)};
  for (auto _ : state) benchmark::DoNotOptimize(bias_dropout_add_norm(x, w, x, dropout, w, w, 1e-5));
  bytes(state, 16.0 * kTokens * kHidden);
}
BENCHMARK(BM_BiasDropoutAddNorm)->Apply(threads);

void BM_CrossEntropy(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const at::Tensor logits = at::randn({kChunk, kVocab}), labels = at::zeros({kChunk}, at::kLong),
                   scale = at::zeros({kChunk});
  const VocabRange range{.begin = 0, .end = 50257, .vocab = 50257};
  for (auto _ : state) {
    const SoftmaxPieces pieces = softmax_pieces(logits, labels, range, false);
    cross_entropy_gradient_(logits, labels, range, pieces.max, scale, 0);
  }
  bytes(state, 12.0 * kChunk * kVocab);
}
BENCHMARK(BM_CrossEntropy)->Apply(threads);

void BM_AdamW(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  at::Tensor state_tensors[4];
  for (at::Tensor& t : state_tensors) t = at::zeros({kParameters}).fill_(0.01);
  for (auto _ : state)
    adam_(state_tensors[0], {}, state_tensors[1], state_tensors[2], state_tensors[3], {}, {.learning_rate = 1e-4});
  bytes(state, 28.0 * kParameters);
}
BENCHMARK(BM_AdamW)->Apply(threads);

void BM_SumOfSquares(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const at::Tensor x = at::zeros({kParameters}).fill_(0.01);
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares(x));
  bytes(state, 4.0 * kParameters);
}
BENCHMARK(BM_SumOfSquares)->Apply(threads);

void BM_FillNormal(benchmark::State& state) {
  configure_thread(static_cast<int>(state.range(0)));
  const at::Tensor x = at::zeros({kParameters});
  for (auto _ : state) fill_normal_(x, 1, 0.02, {kParameters}, -1, 0);
  bytes(state, 4.0 * kParameters);
}
BENCHMARK(BM_FillNormal)->Apply(threads);

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
