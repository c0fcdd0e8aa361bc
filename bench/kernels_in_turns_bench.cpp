// Kernels and what they are to be compared with, in turns, so that a busy machine slows all alike: the products of 8
// experts in one call, of each expert alone, and one product of as many rows; attention within a window and over all
// keys; a token's attention over keys in blocks and over keys side by side, as an operator and in a step of decoding.
// Counters: milliseconds, medians.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/decode.h"
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

/// One round of each, then rounds of all in turns.
void in_turns(benchmark::State& state, const std::vector<std::pair<std::string, Work>>& all) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> milliseconds(all.size());
  for (const auto& [name, work] : all) work();
  for (auto _ : state)
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto start = Clock::now();
      all[i].second();
      milliseconds[i].push_back(1e3 * std::chrono::duration<double>(Clock::now() - start).count());
    }
  for (std::size_t i = 0; i < all.size(); ++i) state.counters[all[i].first] = median(milliseconds[i]);
}

/// `grouped`: the products of all experts in one call; `one`: of expert g alone; `whole`: one product of all rows.
void experts_in_turns(benchmark::State& state, const Work& grouped, const std::function<void(std::size_t g)>& one,
                      const Work& whole) {
  const auto alone = [&] {
    for (std::size_t g = 0; g + 1 < kOffsets.size(); ++g) one(g);
  };
  in_turns(state, {{"grouped", grouped}, {"alone", alone}, {"whole", whole}});
}

void BM_GroupedLinear(benchmark::State& state, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  Experts e(dtype);
  experts_in_turns(
      state, [&] { benchmark::DoNotOptimize(grouped_linear(e.x, e.groups)); },
      [&](std::size_t g) { benchmark::DoNotOptimize(linear(e.part(e.x, g), e.groups.weights[g], &e.packed[g])); },
      [&] { benchmark::DoNotOptimize(linear(e.x, e.groups.weights[0], &e.packed[0])); });
}

void BM_GroupedInputGradient(benchmark::State& state, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  Experts e(dtype);
  experts_in_turns(
      state, [&] { benchmark::DoNotOptimize(grouped_input_gradient(e.dy, e.groups)); },
      [&](std::size_t g) {
        benchmark::DoNotOptimize(linear_input_gradient(e.part(e.dy, g), e.groups.weights[g], &e.packed[g]));
      },
      [&] { benchmark::DoNotOptimize(linear_input_gradient(e.dy, e.groups.weights[0], &e.packed[0])); });
}

void BM_GroupedWeightGradient(benchmark::State& state, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  Experts e(dtype);
  experts_in_turns(
      state, [&] { grouped_weight_gradient(e.gradients, e.dy, e.x, e.betas); },
      [&](std::size_t g) { linear_weight_gradient(e.gradients.weights[g], e.part(e.dy, g), e.part(e.x, g), 1); },
      [&] { linear_weight_gradient(e.gradients.weights[0], e.dy, e.x, 1); });
}

/// A causal layer of 4 heads over 8192 tokens, forward and backward, of which each sees the 1024 last or all.
void BM_Window(benchmark::State& state, at::ScalarType dtype) {
  constexpr std::int64_t kTokens = 8192, kSeen = 1024, kHeads = 4, kHeadSize = 64;
  const c10::NoGradGuard no_grad;
  configure_thread(2);
  const at::Tensor qkv = at::randn({kTokens, 1, kHeads, 3, kHeadSize}).to(dtype), gradients = at::empty_like(qkv);
  const at::Tensor dout = at::randn({kTokens, 1, kHeads, kHeadSize}).to(dtype);
  const auto part = [](const at::Tensor& x, std::int64_t i) { return x.select(3, i); };
  const auto layer = [&](const AttentionOptions& options) {
    const at::Tensor q = part(qkv, 0), k = part(qkv, 1), v = part(qkv, 2);
    const AttentionOutput forward = attention(q, k, v, options);
    attention_backward(dout, q, k, v, forward, options, part(gradients, 0), part(gradients, 1), part(gradients, 2));
  };
  const AttentionOptions window{.first_key = (at::arange(kTokens, at::kInt) - (kSeen - 1)).clamp_min(0).unsqueeze(0)};
  in_turns(state, {{"window", [&] { layer(window); }}, {"full", [&] { layer({}); }}});
}

/// A query of 9 heads in 3 groups over the 1024 keys and values of each of 30 layers, more than a processor's cache
/// holds; in blocks of 64 tokens, which lie in no order, as they do in a server's pool.
void BM_PagedCache(benchmark::State& state, at::ScalarType dtype) {
  constexpr std::int64_t kLayers = 30, kTokens = 1024, kBlock = 64, kGroups = 3, kSharing = 3, kHeadSize = 64;
  const c10::NoGradGuard no_grad;
  configure_thread(2);
  const at::Tensor q = at::randn({1, 1, kGroups, kSharing, kHeadSize}).to(dtype);
  const at::Tensor blocks = at::randperm(kTokens / kBlock, at::kLong);
  struct Layer {
    at::Tensor k, v, k_pool, v_pool;
  };
  const auto in_blocks = [&](const at::Tensor& x) {  // laid out as the model's
    at::Tensor pool = at::empty({kTokens / kBlock, kGroups, kBlock, kHeadSize}, x.options()).transpose(1, 2);
    pool.index_copy_(0, blocks, x.squeeze(1).view({-1, kBlock, kGroups, kHeadSize}));
    return pool;
  };
  std::vector<Layer> layers;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const auto drawn = [&] { return at::randn({1, kGroups, kTokens, kHeadSize}).to(dtype).permute({2, 0, 1, 3}); };
    const at::Tensor k = drawn(), v = drawn();
    layers.push_back({k, v, in_blocks(k), in_blocks(v)});
  }
  const auto paged = [&] {
    for (const Layer& each : layers)
      benchmark::DoNotOptimize(attention_over_blocks(q, each.k_pool, each.v_pool, blocks, kTokens, {}));
  };
  const auto side_by_side = [&] {
    for (const Layer& each : layers) benchmark::DoNotOptimize(attention(q, each.k, each.v, {}));
  };
  in_turns(state, {{"paged", paged}, {"side_by_side", side_by_side}});
}

/// The same in a step of decoding of several texts (state: tokens of each, texts), with as many layers as a processor's
/// cache does not hold.
void BM_PagedStep(benchmark::State& state, at::ScalarType dtype) {
  constexpr std::int64_t kBlock = 64, kGroups = 3, kSharing = 3, kHeadSize = 64, kMostLayers = 30;
  constexpr std::int64_t kBytes = std::int64_t{96} << 20;
  const c10::NoGradGuard no_grad;
  configure_thread(2);
  const std::int64_t tokens = state.range(0), texts = state.range(1), blocks_of_each = tokens / kBlock;
  const auto of_dtype = at::TensorOptions(dtype);
  const at::Tensor order = at::randperm(texts * blocks_of_each, at::kLong);
  std::vector<SequenceBlocks> sequences;
  for (std::int64_t i = 0; i < texts; ++i)
    sequences.push_back({.blocks = {order.const_data_ptr<std::int64_t>() + i * blocks_of_each,
                                    static_cast<std::size_t>(blocks_of_each)},
                         .length = tokens - 1});
  struct Layer {
    at::Tensor k, v, k_pool, v_pool;
  };
  std::vector<Layer> layers;
  for (std::int64_t bytes = 0; bytes < kBytes && std::ssize(layers) < kMostLayers;) {
    const auto drawn = [&] { return at::randn({texts, kGroups, tokens, kHeadSize}).to(dtype).permute({2, 0, 1, 3}); };
    const auto in_blocks = [&](const at::Tensor& x) {
      at::Tensor pool = at::empty({texts * blocks_of_each, kGroups, kBlock, kHeadSize}, of_dtype).transpose(1, 2);
      return pool.index_copy_(0, order, x.transpose(0, 1).reshape({-1, kBlock, kGroups, kHeadSize}));
    };
    const at::Tensor k = drawn(), v = drawn();
    layers.push_back({k, v, in_blocks(k), in_blocks(v)});
    bytes += static_cast<std::int64_t>(k.nbytes() + v.nbytes());
  }
  const at::Tensor qkv = at::randn({texts, kGroups * (kSharing + 2) * kHeadSize}).to(dtype);
  const at::Tensor out = at::empty({texts, kGroups * kSharing * kHeadSize}, of_dtype);
  const CacheStep step{.batch = texts,
                       .heads = kGroups * kSharing,
                       .groups = kGroups,
                       .head_size = kHeadSize,
                       .rope = {},
                       .position_b = {},
                       .sinks = {},
                       .first_key_b = {},
                       .length = tokens - 1};
  const at::Tensor scratch = attention_scratch(step);
  const auto paged = [&] {
    for (const Layer& each : layers) attend_to_blocks(out, qkv, each.k_pool, each.v_pool, sequences, step, scratch);
  };
  const auto side_by_side = [&] {
    for (const Layer& each : layers) attend_to_cache(out, qkv, each.k, each.v, step, scratch);
  };
  in_turns(state, {{"paged", paged}, {"side_by_side", side_by_side}});
}

void steps(benchmark::internal::Benchmark* of) {
  of->ArgNames({"tokens", "texts"})->ArgsProduct({{512, 1024, 4096}, {1, 4, 16}})->UseRealTime();
}

BENCHMARK_CAPTURE(BM_GroupedLinear, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedLinear, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedInputGradient, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedInputGradient, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedWeightGradient, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_GroupedWeightGradient, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_Window, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_Window, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_PagedCache, fp32, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(BM_PagedCache, bf16, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(BM_PagedStep, fp32, at::kFloat)->Apply(steps);
BENCHMARK_CAPTURE(BM_PagedStep, bf16, at::kBFloat16)->Apply(steps);

}  // namespace
}  // namespace megatron::kernels

int main(int argc, char** argv) {
  megatron::kernels::install_caching_allocator();  // as the program does, whose steps take no page fault
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
