#pragma once
#include <ATen/ops/randint.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/parallel/backward.h"
#include "tests/testing/dense_gpt.h"

namespace megatron::testing {

/// A few layers of four heads; 12 rows of embedding for 10 tokens, so that padding is there.
inline model::GptOptions small(std::int64_t num_layers = 2) {
  model::GptOptions options;
  options.shape = {.num_layers = num_layers,
                   .hidden = 16,
                   .num_heads = 4,
                   .ffn_hidden = 24,
                   .vocab = 10,
                   .padded_vocab = 12,
                   .max_positions = 8};
  options.loss_chunk_tokens = 5;
  options.seed = 77;
  return options;
}

inline model::Batch random_batch(std::int64_t vocab, std::int64_t b = 2, std::int64_t s = 7,
                                 at::ScalarType dtype = at::kDouble) {
  auto generator = at::detail::createCPUGenerator(3);
  model::Batch batch;
  batch.tokens_bs = at::randint(0, vocab, {b, s}, generator, at::kLong);
  batch.labels_bs = at::randint(0, vocab, {b, s}, generator, at::kLong);
  batch.loss_mask_bs = at::ones({b, s}, dtype);
  batch.loss_mask_bs[0][2] = 0;
  batch.sample_ids = at::arange(b, at::kLong) * 5 + 11;
  return batch;
}

/// A model cut into stages, each with parameters of its own, as the ranks of a pipeline have them.
struct StagedGpt {
  std::vector<parallel::ParameterStore> stores;
  std::vector<model::Gpt> stages;

  StagedGpt(const model::GptOptions& options, const std::vector<plan::StagePart>& parts, const comm::Group& tp,
            const Tensors& weights, at::ScalarType dtype = at::kDouble) {
    for (const auto& part : parts)
      stores.push_back(make_store(options.shape, tp.size(), tp.rank(), weights, dtype, 1234, at::kCPU, {part}));
    for (std::size_t k = 0; k < parts.size(); ++k) stages.emplace_back(options, parts[k], stores[k], tp);
  }

  /// Forward through all stages, then backward; what crosses a boundary is a copy, as if it had been sent.
  model::LossSum step(const model::Batch& batch) const {
    std::vector<parallel::GraphLeaf> leaves;
    std::vector<parallel::GraphRoot> roots;
    at::Tensor x;
    for (std::size_t k = 0; k + 1 < stages.size(); ++k) {
      const auto y = stages[k].forward(std::move(x), batch, true);
      roots.emplace_back(y);
      leaves.emplace_back(y.detach().clone());
      x = leaves.back().take();
    }
    auto loss = stages.back().loss(std::move(x), batch, true);
    parallel::GraphRoot(loss.sum).backward(at::ones({}, at::kDouble));
    for (std::size_t k = roots.size(); k-- > 0;) roots[k].backward(leaves[k].take_gradient().clone());
    return {loss.sum.detach(), loss.count};
  }
};

}  // namespace megatron::testing
