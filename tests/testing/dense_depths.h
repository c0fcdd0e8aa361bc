#pragma once
#include <string>
#include <vector>

#include "tests/testing/dense_model.h"

namespace megatron::testing {

/// A DenseModel with depths of multi-token prediction, which looks each token ahead up where it stands.
class DenseDepths : public DenseModel {
 public:
  using DenseModel::DenseModel;

  /// As of the model; in training the depths add their gradients, and no value.
  at::Tensor loss_with_depths(const model::Batch& batch, bool training) const {
    const auto sum = DenseModel::loss_sum(batch, training);
    if (!training) return sum;
    auto all = at::zeros({}, at::kDouble);
    for (const at::Tensor& depth : depth_losses(batch)) all = all + depth;
    all = all * (o_.mtp_loss_scaling_factor / static_cast<double>(o_.shape.mtp_depths));
    if (router_losses_.defined()) all = all + router_losses_;
    router_losses_ = at::Tensor();
    return sum + (all - all.detach());
  }

  /// In training, the sum of each depth's loss: depth k - 1 reads at position i the token at i + k of the same
  /// document.
  std::vector<at::Tensor> depth_losses(const model::Batch& batch) const {
    std::vector<at::Tensor> sums;
    const std::int64_t rows = batch.tokens_bs.size(0), s = batch.tokens_bs.size(1);
    auto x = states(batch, true);
    router_losses_ = at::Tensor();  // the model's own
    for (std::int64_t k = 1; k <= o_.shape.mtp_depths; ++k) {
      auto tokens = at::zeros_like(batch.tokens_bs), labels = at::zeros_like(tokens), places = at::zeros_like(tokens);
      auto counts = at::zeros({rows, s}, at::kDouble);
      for (std::int64_t b = 0; b < rows; ++b)
        for (std::int64_t i = 0; i + k < s; ++i) {
          const auto& first = batch.first_key_bs;
          if (first.defined() && first[b][i].item<int>() != first[b][i + k].item<int>()) continue;
          tokens[b][i] = batch.tokens_bs[b][i + k];
          labels[b][i] = batch.labels_bs[b][i + k];
          places[b][i] = positions_of(batch)[b][i + k];
          counts[b][i] = batch.loss_mask_bs.defined() ? batch.loss_mask_bs[b][i + k].item<double>() : 1.0;
        }
      const std::string number = std::to_string(k - 1), p = "mtp.layers." + number + ".";
      auto words = at::embedding(w("embedding.word_embeddings.weight"), tokens);
      if (o_.shape.learned_positions)
        words = words + at::embedding(w("embedding.position_embeddings.weight"), places + o_.shape.position_offset);
      words = words * first_scale() * mask("depth " + number + "/embedding", batch, s, true);
      x = at::linear(at::cat({norm(words, p + "enorm"), norm(x, p + "hnorm")}, -1), w(p + "eh_proj.weight"));
      x = norm(block(x, o_.shape.num_layers + k - 1, batch, true), p + "final_layernorm");
      const auto log_p = at::log_softmax(logits_of(x), -1);
      const auto nll = -log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1), mean = -log_p.mean(-1);
      sums.push_back(((nll * (1 - o_.label_smoothing) + mean * o_.label_smoothing) * counts).sum());
    }
    return sums;
  }
};

}  // namespace megatron::testing
