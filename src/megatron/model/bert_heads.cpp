#include "megatron/model/bert_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "megatron/model/block.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {
namespace {

using Gradients = std::vector<at::Tensor>;

/// The state of each sample's first token [b, h] on every rank of `sequence`: the first rank's first row. Each rank has
/// the whole gradient of it; the first keeps it.
at::Tensor first_token(const at::Tensor& hidden, const comm::Group& sequence) {
  const auto first = parallel::without_autograd([&] {
    const auto row = hidden.detach().select(0, 0).clone();
    sequence.broadcast(row, 0);
    return row;
  });
  return parallel::with_backward(
      {hidden}, first, [shape = hidden.sizes().vec(), own = sequence.rank() == 0](const Gradients& grads) -> Gradients {
        const auto dhidden = at::zeros(shape, grads[0].options());
        if (own) dhidden.select(0, 0).copy_(grads[0]);
        return {dhidden};
      });
}

}  // namespace

parallel::ColumnParallelLinear whole_linear(const parallel::ParameterStore& parameters, const std::string& prefix,
                                            bool skip_bias_add, bool bias) {
  return {parameters.get(prefix + ".weight"),
          bias ? parameters.get(prefix + ".bias") : nullptr,
          comm::Group(),
          {.gather_output = false, .skip_bias_add = skip_bias_add, .sequence_parallel = false}};
}

BertHeads::BertHeads(const parallel::ParameterStore& parameters, const plan::ModelShape& shape, double epsilon,
                     const comm::Group& tp, bool sequence_parallel)
    : dense_(whole_linear(parameters, "lm_head.dense", /*skip_bias_add=*/true, shape.masked_lm_bias)),
      norm_(norm_of(parameters, "lm_head.layer_norm.", {epsilon, shape})),
      sequence_(sequence_parallel ? tp : comm::Group()) {
  if (!shape.sentence_head) return;
  pooler_ = whole_linear(parameters, "pooler.dense");
  sentence_ = whole_linear(parameters, "binary_head");
}

at::Tensor BertHeads::token_states(const at::Tensor& hidden) const {
  return normalized(bias_activation(dense_.forward(hidden), dense_.bias(), kernels::Activation::GeluErf), norm_).y;
}

at::Tensor BertHeads::pooled(const at::Tensor& hidden) const {
  return at::tanh(pooler_.value().forward(first_token(hidden, sequence_)));
}

at::Tensor BertHeads::sentence_logits(const at::Tensor& pooled_bh) const {
  return sentence_.value().forward(pooled_bh);
}

at::Tensor class_loss_sum(const at::Tensor& logits_bc, const at::Tensor& labels_b, double gradient_scale) {
  const auto wide = logits_bc.to(at::kDouble);
  const auto logits = parallel::with_backward(
      {wide}, wide.detach(),
      [gradient_scale](const Gradients& grads) -> Gradients { return {grads[0] * gradient_scale}; });
  const auto log_p = at::log_softmax(logits, -1);
  const auto of_labels = log_p.gather(1, labels_b.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -(of_labels * labels_b.ge(0).to(at::kDouble)).sum();
}

}  // namespace megatron::model
