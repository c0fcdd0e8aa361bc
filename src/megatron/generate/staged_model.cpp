#include "megatron/generate/staged_model.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "megatron/model/decoding/token_graph.h"

namespace megatron::generate {

StagedModel::StagedModel(model::CachedGpt stage, comm::Group pp, at::TensorOptions tensor)
    : stage_(std::move(stage)), pp_(std::move(pp)), tensor_(tensor) {}

template <class Compute>
at::Tensor StagedModel::through_stages(const at::Tensor& tokens, std::int64_t s, std::int64_t b, std::int64_t rows,
                                       const Compute& compute) const {
  const int stage = pp_.rank(), last = pp_.size() - 1;
  if (last == 0) return compute(tokens);
  const auto& shape = options().shape;
  at::Tensor x = tokens;
  if (stage > 0) {
    x = at::empty({s, b, shape.hidden}, model::stream_options(shape, tensor_));
    pp_.recv(x, stage - 1);
  }
  x = compute(x).contiguous();
  if (stage < last) {
    pp_.send(x, stage + 1);
    x = at::empty({rows, shape.vocab}, tensor_);
  }
  pp_.broadcast(x, last);
  return x;
}

at::Tensor StagedModel::forward(const at::Tensor& tokens_bs, model::KvCache& cache, at::Tensor* states) const {
  const std::int64_t b = tokens_bs.size(0), s = tokens_bs.size(1);
  return through_stages(tokens_bs, s, b, b, [&](const at::Tensor& x) { return stage_.forward(x, cache, states); });
}

at::Tensor StagedModel::forward(const at::Tensor& tokens_1s, model::PagedCache& cache) const {
  return through_stages(tokens_1s, tokens_1s.size(1), 1, 1,
                        [&](const at::Tensor& x) { return stage_.forward(x, cache); });
}

at::Tensor StagedModel::forward_all(const at::Tensor& tokens_1s, model::KvCache& cache, at::Tensor* states) const {
  const std::int64_t s = tokens_1s.size(1);
  return through_stages(tokens_1s, s, 1, s, [&](const at::Tensor& x) { return stage_.forward_all(x, cache, states); });
}

at::Tensor StagedModel::forward_all(const at::Tensor& tokens_1s, model::PagedCache& cache) const {
  const std::int64_t s = tokens_1s.size(1);
  return through_stages(tokens_1s, s, 1, s, [&](const at::Tensor& x) { return stage_.forward_all(x, cache); });
}

at::Tensor StagedModel::step(const at::Tensor& tokens_b, std::span<model::PagedCache* const> caches) const {
  const std::int64_t b = tokens_b.size(0);
  return through_stages(tokens_b, 1, b, b, [&](const at::Tensor& x) { return stage_.step(x, caches); });
}

std::unique_ptr<model::TokenGraph> StagedModel::token_graph(model::KvCache& cache) const {
  return pp_.size() == 1 ? stage_.token_graph(cache) : nullptr;
}

}  // namespace megatron::generate
