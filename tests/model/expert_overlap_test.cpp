#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/model/small_model.h"

// The shared expert computes while tokens travel between the ranks of the experts.
namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::small;

/// Exchanges that have begun and that were waited for.
struct ExchangeCounts {
  int begun = 0, waited = 0;
};

class WatchedExchange final : public comm::Work {
 public:
  WatchedExchange(comm::WorkHandle inner, std::shared_ptr<ExchangeCounts> counts)
      : inner_(std::move(inner)), counts_(std::move(counts)) {}
  void wait() override {
    inner_->wait();
    ++counts_->waited;
  }

 private:
  comm::WorkHandle inner_;
  std::shared_ptr<ExchangeCounts> counts_;
};

class WatchedBackend final : public comm::CountingBackend {
 public:
  WatchedBackend(std::shared_ptr<comm::Backend> inner, std::shared_ptr<ExchangeCounts> counts)
      : CountingBackend(std::move(inner)), counts_(std::move(counts)) {}

  comm::WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    ++counts_->begun;
    return std::make_shared<WatchedExchange>(CountingBackend::all_to_all(std::move(out), std::move(in)), counts_);
  }

 private:
  std::shared_ptr<ExchangeCounts> counts_;
};

TEST(ExpertOverlap, TheSharedExpertIsReadWhileTokensTravelBothWays) {
  TransformerOptions options = small(1);
  options.shape.gated = true;
  options.shape.experts = plan::Experts{
      .expert = {.width = 12, .gated = true}, .count = 4, .top_k = 2, .shared_width = 8, .shared_gate = true};
  const auto weights = random_weights(options.shape, 4);
  comm::run_ranks(2, [&](const comm::Group& ep) {
    const auto counts = std::make_shared<ExchangeCounts>();
    const auto store =
        make_store(options.shape, 1, 0, weights, at::kDouble, 1, at::kCPU, {}, {.ep = 2, .rank = ep.rank()});
    TransformerOptions of_rank = options;
    of_rank.experts = comm::Group(std::make_shared<WatchedBackend>(ep.backend(), counts));
    std::vector<std::pair<std::string, ExchangeCounts>> reads;
    for (const char* part : {"linear_fc1", "linear_fc2"}) {
      const auto parameter = store.get(std::string("decoder.layers.0.mlp.shared_experts.") + part + ".weight");
      parameter->arrival = std::make_shared<parallel::Arrival>();  // of its own, not its bucket's
      parameter->arrival->on_read([&reads, counts, part](bool) { reads.emplace_back(part, *counts); });
    }
    const TransformerStage gpt(of_rank, store, {});
    at::Tensor loss = gpt.loss({}, random_batch(10), true).sum;
    std::vector<std::string> parts;
    for (const auto& [part, then] : reads) parts.push_back(part);
    EXPECT_EQ(parts, (std::vector<std::string>{"linear_fc1", "linear_fc2"}));
    loss.backward();
    parts.clear();
    for (const auto& [part, then] : reads) {
      parts.push_back(part);
      EXPECT_GT(then.begun, then.waited) << part << ", read number " << parts.size();
    }
    EXPECT_EQ(parts, (std::vector<std::string>{"linear_fc1", "linear_fc2", "linear_fc2", "linear_fc1"}));
    EXPECT_EQ(counts->begun, 2 + 5);
    EXPECT_EQ(counts->waited, counts->begun);
  });
}

}  // namespace
}  // namespace megatron::model
