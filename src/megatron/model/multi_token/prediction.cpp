#include "megatron/model/multi_token/prediction.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/autograd.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {
namespace {

/// [.., h] and [.., h] -> [.., 2 h].
at::Tensor side_by_side(const at::Tensor& a, const at::Tensor& b) {
  const auto both = parallel::without_autograd([&] { return at::cat({a, b}, -1); });
  return parallel::with_backward({a, b}, both, [](const std::vector<at::Tensor>& grads) {
    const std::int64_t h = grads[0].size(-1) / 2;
    return std::vector<at::Tensor>{grads[0].narrow(-1, 0, h).contiguous(), grads[0].narrow(-1, h, h).contiguous()};
  });
}

at::Tensor from_ahead(const at::Tensor& x_bs, std::int64_t places, const at::Tensor& first_key_bs) {
  auto ahead = at::zeros_like(x_bs);
  const std::int64_t there = x_bs.size(1) - places;
  if (there <= 0) return ahead;
  auto part = ahead.narrow(1, 0, there);
  part.copy_(x_bs.narrow(1, places, there));
  if (first_key_bs.defined())
    part.masked_fill_(first_key_bs.narrow(1, places, there).ne(first_key_bs.narrow(1, 0, there)), 0);
  return ahead;
}

}  // namespace

PredictionModules::PredictionModules(const parallel::ParameterStore& parameters, const plan::PredictionDepth& depth,
                                     const Block::Options& options, const comm::Group& tp)
    : projection(parameters.get(depth.prefix + depth.projection().name + ".weight"), nullptr, tp,
                 {.gather_output = true, .sequence_parallel = options.sequence_parallel}),
      block(parameters, depth.layer, options, tp),
      sequence(options.sequence_parallel ? tp : comm::Group()) {
  const auto norm = [&](const char* name) {
    return norm_of(parameters, depth.prefix + std::string(name) + ".", {options.epsilon, depth.layer});
  };
  token_norm = norm(plan::PredictionDepth::kTokenNorm);
  state_norm = norm(plan::PredictionDepth::kStateNorm);
  final_norm = norm(plan::PredictionDepth::kFinalNorm);
}

at::Tensor PredictionModules::input(const at::Tensor& states, const at::Tensor& embeddings) const {
  const Normed tokens = normalized(embeddings, token_norm), before = normalized(states, state_norm);
  const auto again = [tokens = tokens.recompute_fn, before = before.recompute_fn] {
    return at::cat({tokens(), before()}, -1);
  };
  const auto x = projection.forward(side_by_side(tokens.y, before.y), again);
  // Of a split sequence the part is a view, which would keep the whole.
  return sequence.size() > 1 ? comm::scatter_to_group(x, sequence, 0).clone() : x;
}

Batch batch_ahead(const Batch& batch, std::int64_t places, at::ScalarType precise) {
  Batch ahead = batch;
  if (!ahead.loss_mask_bs.defined()) ahead.loss_mask_bs = at::ones_like(ahead.labels_bs, precise);
  if (!ahead.position_ids_bs.defined())
    ahead.position_ids_bs = at::arange(ahead.tokens_bs.size(1), ahead.tokens_bs.options()).expand_as(ahead.tokens_bs);
  for (at::Tensor* x : {&ahead.tokens_bs, &ahead.labels_bs, &ahead.loss_mask_bs, &ahead.position_ids_bs})
    *x = from_ahead(*x, places, batch.first_key_bs);
  if (batch.host) ahead.host = std::make_shared<const Batch>(batch_ahead(*batch.host, places, precise));
  return ahead;
}

}  // namespace megatron::model
