#pragma once
#include <ATen/ops/randint.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/parallel/backward.h"
#include "tests/testing/dense_model.h"

namespace megatron::testing {

/// A few layers of four heads; 12 rows of embedding for 10 tokens, so that padding is there.
inline model::TransformerOptions small(std::int64_t num_layers = 2) {
  model::TransformerOptions options;
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

/// Models of other kinds of layers: between them every option of ModelShape and of rotary positions, and BERTs of both
/// orders of norms.
inline std::vector<std::pair<std::string, model::TransformerOptions>> variants(std::int64_t num_layers = 2) {
  using kernels::Activation;
  auto llama = small(num_layers);  // four ranks have more than its key and value heads
  llama.shape.num_groups = 2;
  llama.shape.rms_norm = llama.shape.gated = true;
  llama.shape.linear_bias = llama.shape.learned_positions = llama.shape.tied_output = false;
  llama.activation = Activation::Silu;
  llama.rope = {.rotary_dim = 4,
                .base = 100,
                .scaling = {.factor = 4, .low_freq_factor = 1, .high_freq_factor = 3, .original_positions = 12}};
  auto one_key = small(num_layers);  // two and more ranks share its one key and value head
  one_key.shape.num_groups = 1;
  one_key.shape.gated = one_key.shape.attention.add_qkv_bias = true;
  one_key.shape.linear_bias = one_key.shape.learned_positions = false;
  one_key.activation = Activation::GeluErf;
  one_key.rope = {.rotary_dim = 2, .base = 50, .interleaved = true};
  auto wide_heads = small(num_layers);
  wide_heads.shape.head_size = 6;
  wide_heads.shape.rms_norm = true;
  wide_heads.shape.learned_positions = false;
  wide_heads.activation = Activation::SquaredRelu;
  auto gated_bias = small(num_layers);
  gated_bias.shape.gated = true;
  gated_bias.shape.num_groups = 2;
  gated_bias.activation = Activation::Relu;
  auto latents = small(num_layers);  // whose values are wider than its keys
  latents.shape.latents = plan::Latents{.q_rank = 6, .kv_rank = 8, .nope = 4, .rope = 2, .value = 10};
  latents.shape.num_groups = 4;
  latents.shape.head_size = latents.shape.latents->head_size();
  latents.shape.attention_scale = 0.3;
  latents.shape.attention.qk_layernorm = latents.shape.rms_norm = latents.shape.gated = true;
  latents.shape.linear_bias = latents.shape.learned_positions = false;
  latents.activation = Activation::Silu;
  latents.rope = {.rotary_dim = 2, .base = 50, .interleaved = true};
  auto bert = small(num_layers);
  bert.shape.causal = false;
  bert.shape.masked_lm_head = bert.shape.pooled_tasks = true;
  bert.shape.token_types = 2;
  bert.shape.sentence_head = true;
  auto original = bert;
  original.shape.residual_after_norm = true;
  original.shape.tied_output = false;
  auto t5 = small(num_layers);
  t5.shape.attention_scale = 1;
  t5.shape.output_scale = 0.25;  // of width 16
  t5.shape.inner_dropout = true;
  t5.shape.encoder_layers = num_layers / 2;
  t5.shape.position_buckets = 8;
  t5.shape.position_max_distance = 6;
  t5.shape.head_size = 3;
  t5.shape.rms_norm = true;
  t5.shape.linear_bias = t5.shape.learned_positions = false;
  t5.activation = Activation::Relu;
  auto untied_t5 = t5;
  untied_t5.shape.gated = untied_t5.shape.linear_bias = true;
  untied_t5.shape.tied_output = untied_t5.shape.rms_norm = false;
  untied_t5.shape.output_scale = 1;
  untied_t5.activation = Activation::GeluTanh;
  return {{"llama", llama},        {"one_key", one_key}, {"wide_heads", wide_heads},  {"gated_bias", gated_bias},
          {"latents", latents},    {"bert", bert},       {"original_bert", original}, {"t5", t5},
          {"untied_t5", untied_t5}};
}

/// Mixtures of experts: one with biases, one with a shared expert, groups and biases of the router.
inline std::vector<std::pair<std::string, model::TransformerOptions>> mixtures() {
  model::TransformerOptions biased = small(), shared = small();
  biased.shape.experts = plan::Experts{
      .expert = {.width = 16, .gated = true, .bias = true}, .count = 4, .top_k = 2, .router = {.linear_bias = true}};
  shared.shape.experts = plan::Experts{
      .expert = {.width = 12, .gated = true},
      .count = 8,
      .top_k = 3,
      .router = {.score = plan::Router::Score::Sigmoid, .groups = 2, .group_top_k = 2, .group_best = 2, .bias = true},
      .shared_width = 8,
      .shared_gate = true};
  shared.shape.rms_norm = true;
  shared.shape.linear_bias = false;
  biased.shape.gated = shared.shape.gated = true;
  return {{"with biases", biased}, {"with a shared expert", shared}};
}

/// A parameter's gradient on a rank of `tp`, the parts of those that hold the same pieces, or make heads of the same,
/// added. Collective over tp.
inline at::Tensor whole_gradient(const parallel::Parameter& parameter, const comm::Group& tp) {
  auto whole = parameter.grad.clone();
  if (parameter.spec.heads_partial) tp.all_reduce(whole);
  std::int64_t begin = 0;
  for (const auto& piece : parameter.spec.pieces) {
    const auto part = whole.narrow(parameter.spec.split_dim, begin, piece.length);
    begin += piece.length;
    if (piece.copies == 1) continue;
    const auto all = tp.all_gather(part.contiguous().unsqueeze(0), 0);
    part.copy_(all.narrow(0, tp.rank() - piece.copy, piece.copies).sum(0));
  }
  return whole;
}

inline model::Batch random_batch(std::int64_t vocab, std::int64_t b = 2, std::int64_t s = 7,
                                 at::ScalarType dtype = at::kDouble) {
  auto generator = at::detail::createCPUGenerator(3);
  model::Batch batch;
  batch.tokens_bs = at::randint(0, vocab, {b, s}, generator, at::kLong);
  batch.labels_bs = at::randint(0, vocab, {b, s}, generator, at::kLong);
  batch.loss_mask_bs = at::ones({b, s}, dtype);
  batch.loss_mask_bs[0][2] = 0;
  batch.token_types_bs = at::randint(0, 2, {b, s}, generator, at::kLong);
  batch.sentence_labels_b = at::arange(b, at::kLong).remainder(2);
  batch.decoder_tokens_bs = at::randint(0, vocab, {b, s}, generator, at::kLong);
  batch.sample_ids = at::arange(b, at::kLong) * 5 + 11;
  return batch;
}

/// A model cut into stages, each with parameters of its own, as the ranks of a pipeline have them.
struct StagedModel {
  std::vector<parallel::ParameterStore> stores;
  std::vector<model::TransformerStage> stages;

  StagedModel(const model::TransformerOptions& options, const std::vector<plan::StageSpec>& parts,
              const comm::Group& tp, const Tensors& weights, at::ScalarType dtype = at::kDouble) {
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
