#include "megatron/generate/staged_t5.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace megatron::generate {

StagedT5::StagedT5(model::CachedT5 stage, const std::vector<plan::StageSpec>& parts, comm::Group pp,
                   at::TensorOptions tensor)
    : stage_(std::move(stage)), pp_(std::move(pp)), tensor_(tensor) {
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].num_layers > 0 && parts[k].first_layer < options().shape.encoder_layers)
      encoder_ends_ = static_cast<int>(k);
    if (plan::begins_decoder(options().shape, parts[k])) decoder_begins_ = static_cast<int>(k);
  }
}

model::T5Cache StagedT5::read(const at::Tensor& tokens_bs, const at::Tensor& key_lengths_b) const {
  const int stage = pp_.rank();
  at::Tensor x = tokens_bs;
  if (stage > 0) x = at::empty({tokens_bs.size(1), tokens_bs.size(0), options().shape.hidden}, tensor_);
  if (stage <= encoder_ends_) {
    if (stage > 0) pp_.recv(x, stage - 1);
    x = stage_.read(x, key_lengths_b).contiguous();
    if (stage < encoder_ends_) pp_.send(x, stage + 1);
  }
  if (pp_.size() > 1) pp_.broadcast(x, encoder_ends_);
  return stage_.begin(x, key_lengths_b);
}

at::Tensor StagedT5::write(const at::Tensor& tokens_b, model::T5Cache& cache) const {
  const int stage = pp_.rank(), last = pp_.size() - 1;
  at::Tensor x = tokens_b;
  if (stage >= decoder_begins_) {
    if (stage > decoder_begins_) {
      x = at::empty({1, tokens_b.size(0), options().shape.hidden}, tensor_);
      pp_.recv(x, stage - 1);
    }
    x = stage_.write(x, cache).contiguous();
    if (stage < last) pp_.send(x, stage + 1);
  }
  if (last == 0) return x;
  if (stage < last) x = at::empty({tokens_b.size(0), options().shape.vocab}, tensor_);
  pp_.broadcast(x, last);
  return x;
}

}  // namespace megatron::generate
