#include "megatron/generate/staged_model.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace megatron::generate {

StagedModel::StagedModel(model::CachedGpt stage, comm::Group pp, at::TensorOptions tensor)
    : stage_(std::move(stage)), pp_(std::move(pp)), tensor_(tensor) {}

at::Tensor StagedModel::forward(const at::Tensor& tokens_bs, model::KvCache& cache) const {
  const int stage = pp_.rank(), last = pp_.size() - 1;
  if (last == 0) return stage_.forward(tokens_bs, cache);
  const auto& shape = options().shape;
  at::Tensor x = tokens_bs;
  if (stage > 0) {
    x = at::empty({tokens_bs.size(1), tokens_bs.size(0), shape.hidden}, tensor_);
    pp_.recv(x, stage - 1);
  }
  x = stage_.forward(x, cache).contiguous();
  if (stage < last) {
    pp_.send(x, stage + 1);
    x = at::empty({tokens_bs.size(0), shape.vocab}, tensor_);
  }
  pp_.broadcast(x, last);
  return x;
}

}  // namespace megatron::generate
