// Kernels compared with libtorch operations of the same meaning, at the shapes of GPT-2 124M, one sample of 1024
// tokens. Run with --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
// --benchmark_report_aggregates_only=true and compare medians: a shared machine drifts. The argument is the number of
// threads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <string>
#include <vector>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/matmul.h"
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
      for (auto* cache : {&k, &v})  // laid out as the model's
        cache->push_back(at::randn({1, kGroups, kTokens, kHeadSize}).to(dtype).permute({2, 0, 1, 3}));
  }
  double bytes() const { return 2.0 * kLayers * static_cast<double>(k[0].nbytes()); }
};

void bytes(benchmark::State& state, double count) {
  state.counters["GB/s"] = benchmark::Counter(count * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

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

// Matrix products of a layer, rows x outputs x inputs: GPT-2 124M's layers and vocabulary on 1024 tokens,
// SmolLM2-135M's on one, decoding, where the bytes of the weight a second are what counts. "Torch": at::mm and its
// like.
struct LinearShape {
  std::int64_t rows, outputs, inputs;
};
constexpr LinearShape kLinear[] = {{kTokens, 2304, 768},  {kTokens, 3072, 768}, {kTokens, 768, 3072},
                                   {kTokens, 50304, 768}, {1, 3072, 576},       {1, 576, 1536},
                                   {1, 49152, 576}};

/// Operands of one shape, and enough weights in turn that no cache holds them where their bytes are what counts.
struct Linear {
  LinearShape shape;
  std::vector<at::Tensor> weights;
  std::vector<PackedWeight> packed;
  at::Tensor x, dy, y, dx, grad;
  std::size_t next = 0;

  Linear(const benchmark::State& state, at::ScalarType dtype) : shape(kLinear[state.range(1)]) {
    configure_thread(static_cast<int>(state.range(0)));
    constexpr std::int64_t kElements = 64 << 20;
    const std::int64_t count = shape.rows > 1 ? 1 : kElements / (shape.outputs * shape.inputs) + 1;
    for (std::int64_t i = 0; i < count; ++i) weights.push_back(at::randn({shape.outputs, shape.inputs}).to(dtype));
    packed.resize(weights.size());
    x = at::randn({shape.rows, shape.inputs}).to(dtype);
    dy = at::randn({shape.rows, shape.outputs}).to(dtype);
    y = at::empty(dy.sizes(), dtype);
    dx = at::empty(x.sizes(), dtype);
    grad = at::zeros({shape.outputs, shape.inputs});
  }
  /// Times fn(weight, its copy for AMX).
  template <class Fn>
  void time(benchmark::State& state, const Fn& fn) {
    for (auto _ : state) {
      fn(weights[next], &packed[next]);
      next = (next + 1) % weights.size();
    }
    rate(state, 2e0 * static_cast<double>(shape.rows * shape.outputs * shape.inputs));
    bytes(state, static_cast<double>(weights[0].nbytes()));
  }
};

void BM_Linear(benchmark::State& state, at::ScalarType dtype) {
  Linear l(state, dtype);
  l.time(state, [&](const at::Tensor& w, PackedWeight* p) { benchmark::DoNotOptimize(kernels::linear(l.x, w, p)); });
}
void BM_LinearTorch(benchmark::State& state, at::ScalarType dtype) {
  Linear l(state, dtype);
  l.time(state, [&](const at::Tensor& w, PackedWeight*) { at::mm_out(l.y, l.x, w.t()); });
}
void BM_LinearInputGradient(benchmark::State& state, at::ScalarType dtype) {
  Linear l(state, dtype);
  l.time(state,
         [&](const at::Tensor& w, PackedWeight* p) { benchmark::DoNotOptimize(linear_input_gradient(l.dy, w, p)); });
}
void BM_LinearInputGradientTorch(benchmark::State& state, at::ScalarType dtype) {
  Linear l(state, dtype);
  l.time(state, [&](const at::Tensor& w, PackedWeight*) { at::mm_out(l.dx, l.dy, w); });
}
void BM_LinearWeightGradient(benchmark::State& state, at::ScalarType dtype) {
  Linear l(state, dtype);
  l.time(state, [&](const at::Tensor&, PackedWeight*) { linear_weight_gradient(l.grad, l.dy, l.x, 1.0); });
}
void BM_LinearWeightGradientTorch(benchmark::State& state, at::ScalarType dtype) {
  Linear l(state, dtype);
  l.time(state, [&](const at::Tensor&, PackedWeight*) { l.grad.add_(at::mm(l.dy.t(), l.x)); });
}
void products(benchmark::internal::Benchmark* benchmark) {
  benchmark->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();
  for (const int count : {1, 2})
    for (int shape = 0; shape < 4; ++shape) benchmark->Args({count, shape});
}
void products_and_decoding(benchmark::internal::Benchmark* benchmark) {
  products(benchmark);
  for (const int count : {1, 2})
    for (int shape = 4; shape < 7; ++shape) benchmark->Args({count, shape});
}
BENCHMARK_CAPTURE(BM_Linear, fp32, at::kFloat)->Apply(products_and_decoding);
BENCHMARK_CAPTURE(BM_Linear, bf16, at::kBFloat16)->Apply(products_and_decoding);
BENCHMARK_CAPTURE(BM_LinearTorch, fp32, at::kFloat)->Apply(products_and_decoding);
BENCHMARK_CAPTURE(BM_LinearTorch, bf16, at::kBFloat16)->Apply(products_and_decoding);
BENCHMARK_CAPTURE(BM_LinearInputGradient, bf16, at::kBFloat16)->Apply(products);
BENCHMARK_CAPTURE(BM_LinearInputGradientTorch, fp32, at::kFloat)->Apply(products);
BENCHMARK_CAPTURE(BM_LinearInputGradientTorch, bf16, at::kBFloat16)->Apply(products);
BENCHMARK_CAPTURE(BM_LinearWeightGradient, bf16, at::kBFloat16)->Apply(products);
BENCHMARK_CAPTURE(BM_LinearWeightGradientTorch, fp32, at::kFloat)->Apply(products);
BENCHMARK_CAPTURE(BM_LinearWeightGradientTorch, bf16, at::kBFloat16)->Apply(products);

// Elementwise kernels and what libtorch does for the same in one call or several, in float32 and in bf16.
constexpr std::int64_t kHidden = 768, kFeedForward = 3072, kVocab = 50304, kChunk = 256;
constexpr std::int64_t kParameters = 40'000'000;

using Work = std::function<void()>;
struct Subject {
  const char* name;
  Work (*ours)(at::ScalarType);
  Work (*torch)(at::ScalarType);  ///< null: nothing comparable
};

at::Tensor normal(at::IntArrayRef shape, at::ScalarType dtype) { return at::randn(shape).to(dtype); }

Work gelu_ours(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kFeedForward}, dtype), bias = normal({kFeedForward}, dtype);
  return [=] { benchmark::DoNotOptimize(bias_activation(x, bias, Activation::GeluTanh)); };
}
Work gelu_torch(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kFeedForward}, dtype), bias = normal({kFeedForward}, dtype);
  return [=] { benchmark::DoNotOptimize(at::gelu(x.add_(bias), "tanh")); };
}

Work gelu_backward_ours(at::ScalarType dtype) {
  const auto u = normal({kTokens, 1, kFeedForward}, dtype), dy = normal({kTokens, 1, kFeedForward}, dtype);
  return [=] { benchmark::DoNotOptimize(activation_backward(dy, u, Activation::GeluTanh)); };
}
Work gelu_backward_torch(at::ScalarType dtype) {
  const auto u = normal({kTokens, 1, kFeedForward}, dtype), dy = normal({kTokens, 1, kFeedForward}, dtype);
  return [=] { benchmark::DoNotOptimize(at::gelu_backward(dy, u, "tanh")); };
}

Work swiglu_ours(at::ScalarType dtype) {
  const auto u = normal({kTokens, 1, 2 * kFeedForward}, dtype), dy = normal({kTokens, 1, kFeedForward}, dtype);
  return [=] {
    benchmark::DoNotOptimize(gated_activation(u, Activation::Silu));
    benchmark::DoNotOptimize(gated_activation_backward(dy, u, Activation::Silu));
  };
}
Work swiglu_torch(at::ScalarType dtype) {
  const auto u = normal({kTokens, 1, 2 * kFeedForward}, dtype), dy = normal({kTokens, 1, kFeedForward}, dtype);
  return [=] {
    const auto gate = u.narrow(2, 0, kFeedForward), value = u.narrow(2, kFeedForward, kFeedForward);
    const auto activated = at::silu(gate);
    benchmark::DoNotOptimize(activated * value);
    benchmark::DoNotOptimize(at::cat({at::silu_backward(dy * value, gate), dy * activated}, 2));
  };
}

Work layer_norm_ours(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kHidden}, dtype), w = normal({kHidden}, dtype);
  const auto dw = at::empty({kHidden}), db = at::empty({kHidden});
  return [=] {
    const NormOutput norm = layer_norm(x, w, w, 1e-5);
    benchmark::DoNotOptimize(layer_norm_backward(norm.y, x, norm.mean, norm.rstd, w, dw, db, 0.0, x));
  };
}
Work layer_norm_torch(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kHidden}, dtype), w = normal({kHidden}, dtype);
  return [=] {
    const auto [y, mean, rstd] = at::native_layer_norm(x, {kHidden}, w, w, 1e-5);
    const auto dx = at::native_layer_norm_backward(y, x, {kHidden}, mean, rstd, w, w, {true, true, true});
    benchmark::DoNotOptimize(std::get<0>(dx) + x);
  };
}

Work rms_norm_ours(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kHidden}, dtype), w = normal({kHidden}, dtype), dw = at::empty({kHidden});
  return [=] {
    const NormOutput norm = rms_norm(x, w, 1e-5);
    benchmark::DoNotOptimize(rms_norm_backward(norm.y, x, norm.rstd, w, dw, 0.0, x));
  };
}
/// Forward alone: libtorch's backward pass is a composition by autograd.
Work rms_norm_torch(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kHidden}, dtype), w = normal({kHidden}, dtype);
  return [=] { benchmark::DoNotOptimize(at::rms_norm(x, {kHidden}, w, 1e-5)); };
}

Work residual_ours(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kHidden}, dtype), w = normal({kHidden}, dtype);
  const Dropout dropout{.p = 0.1, .key = 1, .sample_ids = at::zeros({1}, at::kLong)};
  return [=] { benchmark::DoNotOptimize(bias_dropout_add_norm(x, w, x, dropout, w, w, 1e-5)); };
}
Work residual_torch(at::ScalarType dtype) {
  const auto x = normal({kTokens, 1, kHidden}, dtype), w = normal({kHidden}, dtype);
  return [=] {
    const auto sum = std::get<0>(at::native_dropout(x + w, 0.1, true)) + x;
    benchmark::DoNotOptimize(at::native_layer_norm(sum, {kHidden}, w, w, 1e-5));
  };
}

Work cross_entropy_ours(at::ScalarType dtype) {
  const auto logits = normal({kChunk, kVocab}, dtype), labels = at::zeros({kChunk}, at::kLong);
  const auto scale = at::zeros({kChunk});
  return [=] {
    const VocabRange range{.begin = 0, .end = 50257, .vocab = 50257};
    const SoftmaxPieces pieces = softmax_pieces(logits, labels, range, false);
    cross_entropy_gradient_(logits, labels, range, pieces.max, scale, 0);
  };
}
Work cross_entropy_torch(at::ScalarType dtype) {
  const auto logits = normal({kChunk, kVocab}, dtype), dy = normal({kChunk, kVocab}, dtype);
  return [=] {
    const auto p = at::log_softmax(logits, 1);
    benchmark::DoNotOptimize(at::_log_softmax_backward_data(dy, p, 1, dtype));
  };
}

/// Float32 alone, or with the bf16 copy that the model computes with.
Work adam_ours(at::ScalarType dtype) {
  const auto flat = [] { return at::zeros({kParameters}).fill_(0.01); };
  const auto p = flat(), g = flat(), m = flat(), v = flat(), copy = dtype == at::kFloat ? at::Tensor() : p.to(dtype);
  return [=] { adam_(p, copy, g, m, v, {}, {.learning_rate = 1e-4}); };
}
Work adam_torch(at::ScalarType dtype) {
  const auto flat = [] { return at::zeros({kParameters}).fill_(0.01); };
  const auto p = flat(), g = flat(), m = flat(), v = flat(), copy = dtype == at::kFloat ? at::Tensor() : p.to(dtype);
  const auto step = at::ones({});
  return [=] {
    at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false);
    if (copy.defined()) copy.copy_(p);
  };
}
/// Bf16 moments, and all that is stored in bf16 rounded stochastically (dtype bf16) or to nearest.
Work adam_small_ours(at::ScalarType dtype) {
  const auto flat = [] { return at::zeros({kParameters}).fill_(0.01); };
  const auto p = flat(), g = flat(), m = flat().to(at::kBFloat16), v = m.clone(), copy = m.clone();
  return [=] { adam_(p, copy, g, m, v, {}, {.learning_rate = 1e-4, .stochastic_rounding = dtype == at::kBFloat16}); };
}

Work squares_ours(at::ScalarType dtype) {
  const auto x = at::zeros({kParameters}, dtype).fill_(0.01);
  return [=] { benchmark::DoNotOptimize(sum_of_squares(x)); };
}
Work squares_torch(at::ScalarType dtype) {
  const auto x = at::zeros({kParameters}, dtype).fill_(0.01);
  return [=] { benchmark::DoNotOptimize(at::linalg_vector_norm(x).item<float>()); };
}

Work fill_ours(at::ScalarType dtype) {
  const auto x = at::zeros({kParameters}, dtype);
  return [=] { fill_normal_(x, 1, 0.02, {kParameters}, -1, 0); };
}
Work fill_torch(at::ScalarType dtype) {
  auto x = at::zeros({kParameters}, dtype);
  return [x]() mutable { x.normal_(0, 0.02); };
}

const Subject kSubjects[] = {{"BiasGelu", gelu_ours, gelu_torch},
                             {"GeluBackward", gelu_backward_ours, gelu_backward_torch},
                             {"SwiGlu", swiglu_ours, swiglu_torch},
                             {"LayerNorm", layer_norm_ours, layer_norm_torch},
                             {"RmsNorm", rms_norm_ours, rms_norm_torch},
                             {"BiasDropoutAddNorm", residual_ours, residual_torch},
                             {"CrossEntropy", cross_entropy_ours, cross_entropy_torch},
                             {"AdamW", adam_ours, adam_torch},
                             {"AdamWBf16Moments", adam_small_ours, nullptr},
                             {"SumOfSquares", squares_ours, squares_torch},
                             {"FillNormal", fill_ours, fill_torch}};

}  // namespace

void register_subjects() {
  for (const Subject& subject : kSubjects) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool ours : {true, false}) {
        const auto make = ours ? subject.ours : subject.torch;
        if (make == nullptr) continue;
        const std::string name =
            std::string("BM_") + subject.name + (ours ? "" : "Torch") + (dtype == at::kFloat ? "/fp32" : "/bf16");
        benchmark::RegisterBenchmark(name.c_str(), [make, dtype](benchmark::State& state) {
          configure_thread(static_cast<int>(state.range(0)));
          const Work work = make(dtype);
          for (auto _ : state) work();
        })->Apply(threads);
      }
    }
  }
}

}  // namespace megatron::kernels

int main(int argc, char** argv) {
  megatron::kernels::install_caching_allocator();
  const c10::NoGradGuard no_grad;
  benchmark::Initialize(&argc, argv);
  megatron::kernels::register_subjects();
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("instruction set", megatron::kernels::instruction_set());
  benchmark::RunSpecifiedBenchmarks();
}
