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

/// One layer's heads as views of the fused projection: 12 heads of 64 as GPT-2 has, or 9 in 3 groups as SmolLM2-135M.
struct Attention {
  std::int64_t groups, sharing;
  at::Tensor qkv, dqkv, dout;
  Attention(const benchmark::State& state, at::ScalarType dtype)
      : groups(state.range(1)), sharing(state.range(1) == kHeads ? 1 : 3) {
    qkv = at::randn({kTokens, 1, groups, sharing + 2, kHeadSize}).to(dtype);
    dqkv = at::empty(qkv.sizes(), dtype);
    dout = at::randn({kTokens, 1, groups * sharing, kHeadSize}).to(dtype);
  }
  at::Tensor q(const at::Tensor& x) const { return x.narrow(3, 0, sharing); }
  at::Tensor k(const at::Tensor& x) const { return x.select(3, sharing); }
  at::Tensor v(const at::Tensor& x) const { return x.select(3, sharing + 1); }
  double flops() const { return kAttentionFlops / kHeads * static_cast<double>(groups * sharing); }
  /// [1, heads, tokens, d] for libtorch; keys and values repeated for the heads of a group, as its callers do.
  at::Tensor torch(const at::Tensor& x) const {
    const at::Tensor each = x.dim() == 5 ? x.flatten(2, 3) : x;
    return (each.size(2) == groups * sharing ? each : each.repeat_interleave(sharing, 2)).permute({1, 2, 0, 3});
  }
};

void attention_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Unit(benchmark::kMillisecond)->UseRealTime()->ArgNames({"threads", "groups"});
  for (const int count : {1, 2})
    for (const int groups : {12, 3}) benchmark->Args({count, groups});
}

void BM_AttentionForward(benchmark::State& state, at::ScalarType dtype) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a(state, dtype);
  for (auto _ : state) benchmark::DoNotOptimize(attention(a.q(a.qkv), a.k(a.qkv), a.v(a.qkv), {}));
  rate(state, a.flops());
}
BENCHMARK_CAPTURE(BM_AttentionForward, fp32, at::kFloat)->Apply(attention_sizes);
BENCHMARK_CAPTURE(BM_AttentionForward, bf16, at::kBFloat16)->Apply(attention_sizes);

void BM_AttentionForwardTorch(benchmark::State& state, at::ScalarType dtype) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a(state, dtype);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu(a.torch(a.q(a.qkv)), a.torch(a.k(a.qkv)),
                                                                             a.torch(a.v(a.qkv)), 0.0, true));
  }
  rate(state, a.flops());
}
BENCHMARK_CAPTURE(BM_AttentionForwardTorch, fp32, at::kFloat)->Apply(attention_sizes);
BENCHMARK_CAPTURE(BM_AttentionForwardTorch, bf16, at::kBFloat16)->Apply(attention_sizes);

void BM_AttentionBackward(benchmark::State& state, at::ScalarType dtype) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a(state, dtype);
  const at::Tensor q = a.q(a.qkv), k = a.k(a.qkv), v = a.v(a.qkv);
  const auto forward = attention(q, k, v, {});
  for (auto _ : state) attention_backward(a.dout, q, k, v, forward, {}, a.q(a.dqkv), a.k(a.dqkv), a.v(a.dqkv));
  rate(state, 2.5 * a.flops());
}
BENCHMARK_CAPTURE(BM_AttentionBackward, fp32, at::kFloat)->Apply(attention_sizes);
BENCHMARK_CAPTURE(BM_AttentionBackward, bf16, at::kBFloat16)->Apply(attention_sizes);

void BM_AttentionBackwardTorch(benchmark::State& state, at::ScalarType dtype) {
  configure_thread(static_cast<int>(state.range(0)));
  const Attention a(state, dtype);
  const at::Tensor q = a.torch(a.q(a.qkv)), k = a.torch(a.k(a.qkv)), v = a.torch(a.v(a.qkv)), dout = a.torch(a.dout);
  const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, logsumexp, 0.0, true));
  }
  rate(state, 2.5 * a.flops());
}
BENCHMARK_CAPTURE(BM_AttentionBackwardTorch, fp32, at::kFloat)->Apply(attention_sizes);
BENCHMARK_CAPTURE(BM_AttentionBackwardTorch, bf16, at::kBFloat16)->Apply(attention_sizes);

// Decoding: one query of 9 heads in 3 groups against the caches of 30 layers, which together do not fit a cache.
constexpr std::int64_t kLayers = 30, kGroups = 3, kSharing = 3;

struct Caches {
  std::vector<at::Tensor> k, v;
  at::Tensor q;
  explicit Caches(at::ScalarType dtype) : q(at::randn({1, 1, kGroups, kSharing, kHeadSize}).to(dtype)) {
    for (std::int64_t i = 0; i < kLayers; ++i)
      for (auto* cache : {&k, &v}) cache->push_back(at::randn({kTokens, 1, kGroups, kHeadSize}).to(dtype));
  }
  double bytes() const { return 2.0 * kLayers * static_cast<double>(k[0].nbytes()); }
};

void bytes(benchmark::State& state, double count);

void BM_Decode(benchmark::State& state, at::ScalarType dtype) {
  configure_thread(static_cast<int>(state.range(0)));
  const Caches caches(dtype);
  for (auto _ : state)
    for (std::size_t i = 0; i < caches.k.size(); ++i)
      benchmark::DoNotOptimize(attention(caches.q, caches.k[i], caches.v[i], {}));
  bytes(state, caches.bytes());
}
BENCHMARK_CAPTURE(BM_Decode, fp32, at::kFloat)->Apply(threads);
BENCHMARK_CAPTURE(BM_Decode, bf16, at::kBFloat16)->Apply(threads);

void BM_DecodeTorch(benchmark::State& state, at::ScalarType dtype) {
  configure_thread(static_cast<int>(state.range(0)));
  const Caches caches(dtype);
  const auto each = [](const at::Tensor& x) { return x.repeat_interleave(kSharing, 2).permute({1, 2, 0, 3}); };
  for (auto _ : state) {
    for (std::size_t i = 0; i < caches.k.size(); ++i) {
      benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu(
          caches.q.flatten(2, 3).permute({1, 2, 0, 3}), each(caches.k[i]), each(caches.v[i]), 0.0, false));
    }
  }
  bytes(state, caches.bytes());
}
BENCHMARK_CAPTURE(BM_DecodeTorch, fp32, at::kFloat)->Apply(threads);
BENCHMARK_CAPTURE(BM_DecodeTorch, bf16, at::kBFloat16)->Apply(threads);

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
