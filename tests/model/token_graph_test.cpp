#include "megatron/model/decoding/token_graph.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "tests/model/small_model.h"
#include "tests/testing/cuda.h"

namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::small;

using Models = std::vector<std::pair<std::string, TransformerOptions>>;

TransformerOptions with(const std::function<void(TransformerOptions&)>& change) {
  auto options = small();
  change(options);
  return options;
}

/// What TokenGraph computes.
Models served() {
  Models models;
  for (auto& model : megatron::testing::variants())
    if (model.second.shape.causal && !model.second.shape.encoder_decoder() && !model.second.shape.latents)
      models.push_back(std::move(model));
  models.emplace_back("gpt2", small());
  models.emplace_back("window", with([](auto& o) { o.shape.attention.sliding_window = 2; }));
  models.emplace_back("sinks", with([](auto& o) { o.shape.attention.softmax_type = "learnable"; }));
  models.emplace_back("soft caps", with([](auto& o) {
                        o.shape.attention.attn_logit_softcapping = 2;
                        o.shape.logit_soft_cap = 1;
                      }));
  models.emplace_back("scales", with([](auto& o) {
                        o.shape.root_scaled_words = true;
                        o.shape.embedding_scale = 0.5;
                        o.shape.output_scale = 0.25;
                        o.shape.attention_scale = 0.3;
                        o.shape.norm_1p = true;
                      }));
  models.emplace_back("parallel", with([](auto& o) { o.shape.parallel = true; }));
  models.emplace_back("shared norm", with([](auto& o) { o.shape.parallel = o.shape.shared_norm = true; }));
  models.emplace_back("norms of heads", with([](auto& o) {
                        o.shape.attention.qk_layernorm = true;
                        o.shape.num_groups = 2;
                      }));
  models.emplace_back("norms of heads without weights", with([](auto& o) { o.shape.attention.qk_l2_norm = true; }));
  models.emplace_back("norms behind branches", with([](auto& o) { o.shape.norms.behind = o.shape.rms_norm = true; }));
  models.emplace_back("norms behind branches alone", with([](auto& o) { o.shape.norms = {false, true}; }));
  models.emplace_back("no shift", with([](auto& o) { o.shape.norm_bias = false; }));
  return models;
}

/// Prompts of three tokens, of which sequence 1 has two, that continue with the tokens of a batch.
class Prompted {
 public:
  Prompted(const CachedGpt& gpt, at::Device device) : tokens_bs_(random_batch(10).tokens_bs) {
    cache_ = gpt.make_cache(2, 7);
    cache_.padding = at::arange(2, at::kLong).to(device);
    gpt.forward(tokens_bs_.narrow(1, 0, 3).to(device), cache_);
  }
  KvCache& cache() { return cache_; }
  at::Tensor token(std::int64_t i) const { return tokens_bs_.narrow(1, i, 1); }
  std::vector<std::int64_t> ids(std::int64_t i) const {
    return {tokens_bs_[0][i].item<std::int64_t>(), tokens_bs_[1][i].item<std::int64_t>()};
  }

 private:
  at::Tensor tokens_bs_;
  KvCache cache_;
};

/// The four likeliest of each sequence, and the sum of all by a temperature of 0.7.
void expect_listed(const std::vector<std::optional<kernels::Shortlist>>& lists, const at::Tensor& logits) {
  const at::Tensor on_host = logits.to(at::kCPU, at::kDouble);
  const auto [values, ids] = at::sort(on_host, /*stable=*/true, 1, /*descending=*/true);
  const at::Tensor all = at::exp((on_host - values.narrow(1, 0, 1)) / 0.7).sum(1);
  for (std::int64_t b = 0; b < 2; ++b) {
    const auto& list = lists[static_cast<std::size_t>(b)];
    ASSERT_TRUE(list.has_value());
    EXPECT_TRUE(at::tensor(list->tokens, at::kLong).equal(ids[b].narrow(0, 0, 4)));
    EXPECT_TRUE(at::tensor(list->logits, at::kDouble).equal(values[b].narrow(0, 0, 4)));
    EXPECT_NEAR(list->all, all[b].item<double>(), 1e-12);
  }
}

/// The graph's logits and choices against forward() on the CPU.
void expect_the_logits_of_forward(at::Device device, at::ScalarType dtype, double tolerance) {
  for (const auto& [name, options] : served()) {
    SCOPED_TRACE(name);
    const auto weights = random_weights(options.shape, 4);
    kernels::force_instruction_set("auto");
    const auto plain_store = make_store(options.shape, 1, 0, weights, dtype);
    const CachedGpt plain(options, plain_store, {});
    Prompted expected(plain, at::kCPU);
    EXPECT_EQ(plain.token_graph(expected.cache()), nullptr);  // a CPU is given its operators one by one

    if (device.is_cpu()) kernels::force_instruction_set(kernels::kCudaEmulated);
    const auto store = make_store(options.shape, 1, 0, weights, dtype, 1234, device);
    const CachedGpt gpt(options, store, {});
    Prompted prompted(gpt, device);
    const auto graph = gpt.token_graph(prompted.cache());
    ASSERT_NE(graph, nullptr);
    graph->feed(prompted.ids(3));
    graph->list_likeliest(4, 0.7);
    for (std::int64_t i = 3; i < 6; ++i) {
      graph->step();
      kernels::force_instruction_set("auto");
      const auto logits = plain.forward(expected.token(i), expected.cache());
      if (device.is_cpu()) kernels::force_instruction_set(kernels::kCudaEmulated);
      EXPECT_NEAR_TENSOR(graph->logits().cpu(), logits, tolerance) << "token " << i;
      const auto likeliest = at::argmax(graph->logits().cpu(), 1);
      EXPECT_EQ(graph->chosen(), (std::vector{likeliest[0].item<std::int64_t>(), likeliest[1].item<std::int64_t>()}));
      expect_listed(graph->listed(), graph->logits());
      EXPECT_EQ(prompted.cache().length, i + 1);
      graph->feed(prompted.ids(i + 1));
    }
    // Fed nothing, each continues with what was chosen; a cache can be begun again.
    graph->step();
    EXPECT_THROW(graph->step(), std::logic_error);
    prompted.cache().length = 5;
    graph->feed(prompted.ids(5));
    graph->step();
    const auto chosen = graph->chosen();
    graph->step();
    const auto by_choice = graph->logits().clone();
    prompted.cache().length = 6;
    graph->feed(chosen);
    graph->step();
    EXPECT_TRUE(graph->logits().equal(by_choice));
  }
  kernels::force_instruction_set("auto");
}

TEST(TokenGraph, GivesTheLogitsOfForwardOnAnEmulatedGpu) {
  expect_the_logits_of_forward(at::kCPU, at::kDouble, 1e-12);
  expect_the_logits_of_forward(at::kCPU, at::kBFloat16, 0.03);
}

TEST(TokenGraph, GivesTheLogitsOfForwardOnCuda) {
  NEEDS_A_GPU();
  expect_the_logits_of_forward(at::kCUDA, at::kDouble, 1e-12);
  expect_the_logits_of_forward(at::kCUDA, at::kFloat, 1e-5);
  expect_the_logits_of_forward(at::kCUDA, at::kBFloat16, 0.05);
}

TEST(TokenGraph, LeavesWhatItDoesNotComputeToForward) {
  kernels::force_instruction_set(kernels::kCudaEmulated);
  Models models;
  models.emplace_back("norms over all heads", with([](auto& o) {
                        o.shape.rms_norm = true;
                        o.shape.attention.qk_layernorm = o.shape.attention.qk_layernorm_full = true;
                      }));
  models.emplace_back("original order", with([](auto& o) { o.shape.residual_after_norm = true; }));
  models.push_back(megatron::testing::variants()[4]);  // latents
  for (const auto& [name, options] : models) {
    const auto store = make_store(options.shape, 1, 0);
    const CachedGpt gpt(options, store, {});
    auto cache = gpt.make_cache(1, 4);
    EXPECT_EQ(gpt.token_graph(cache), nullptr) << name;
  }
  const auto store = make_store(small().shape, 1, 0);
  const CachedGpt gpt(small(), store, {});
  auto many = gpt.make_cache(TokenGraph::kMostSequences + 1, 4);
  EXPECT_EQ(gpt.token_graph(many), nullptr);
  comm::run_ranks(2, [&](comm::Group tp) {
    const auto part = make_store(small().shape, 2, tp.rank());
    const CachedGpt split(small(), part, tp);
    auto cache = split.make_cache(1, 4);
    EXPECT_EQ(split.token_graph(cache), nullptr);
  });
  kernels::force_instruction_set("auto");
}

}  // namespace
}  // namespace megatron::model
