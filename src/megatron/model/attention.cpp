#include "megatron/model/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>

#include <memory>
#include <utility>
#include <variant>

#include "megatron/model/recomputed_once.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {

using parallel::with_backward;
using parallel::without_autograd;
using Gradients = std::vector<at::Tensor>;

namespace {

/// The heads in an attention's inputs, or in their gradients. Views.
using HeadsIn = std::function<Heads(const std::vector<at::Tensor>& tensors)>;

/// The options with the sinks as they are now.
kernels::AttentionOptions options_of(const AttentionForm& form) {
  kernels::AttentionOptions options = form.options;
  if (form.sinks) options.sinks = sink_scores(*form.sinks);
  return options;
}

/// Attention of the heads in `inputs` -> `shape`.
Recomputable attention_of(const std::vector<at::Tensor>& inputs, const std::vector<std::int64_t>& shape,
                          const AttentionForm& form, const HeadsIn& heads_in) {
  std::vector<at::Tensor> kept;
  for (const at::Tensor& input : inputs) kept.push_back(input.detach());
  const auto attend = [kept, form, heads_in] {
    const Heads heads = heads_in(kept);
    return shared_attention(form.sequence, heads.q, heads.k, heads.v, options_of(form));
  };
  const auto made = without_autograd([&] {
    form.rotary.rotate(heads_in(kept));
    return attend();
  });
  std::function<kernels::AttentionOutput()> forward =
      [out = kernels::AttentionOutput{made.out.detach(), made.logsumexp}] { return out; };
  parallel::RecomputeFunction recompute_fn;
  if (form.again) {
    const auto remade = std::make_shared<RecomputedOnce<kernels::AttentionOutput>>(attend);
    forward = [remade] { return remade->value(); };
    recompute_fn = [remade, shape] { return remade->value().out.view(shape); };
  }
  auto backward = [kept, form, heads_in, forward = std::move(forward)](const Gradients& grads) -> Gradients {
    const auto out = forward();
    const Heads heads = heads_in(kept);
    Gradients gradients;
    for (const at::Tensor& input : kept) gradients.push_back(at::empty_like(input));
    const Heads into = heads_in(gradients);
    const auto dbias = form.options.bias.defined() ? at::empty_like(form.options.bias) : at::Tensor();
    const kernels::AttentionOptions options = options_of(form);
    const auto dsinks = form.sinks ? at::empty_like(options.sinks) : at::Tensor();
    shared_attention_backward(form.sequence, grads[0].contiguous().view(out.out.sizes()), heads.q, heads.k, heads.v,
                              out, options, into.q, into.k, into.v, dbias, dsinks);
    form.rotary.rotate(into, /*inverse=*/true);
    if (dbias.defined()) form.bias_gradient(dbias);
    if (form.sinks) parallel::Contribution(form.sinks, parallel::Contribution::When::WithTheRest).write(dsinks);
    return gradients;
  };
  return {with_backward(inputs, made.out.view(shape), std::move(backward)), std::move(recompute_fn)};
}

}  // namespace

Heads heads_of(const at::Tensor& qkv, std::int64_t groups, std::int64_t head_size) {
  const auto split = qkv.view({qkv.size(0), qkv.size(1), groups, -1, head_size});
  const std::int64_t queries = split.size(3) - 2;
  return {queries == 1 ? split.select(3, 0) : split.narrow(3, 0, queries), split.select(3, queries),
          split.select(3, queries + 1), split.narrow(3, 0, queries + 1)};
}

at::Tensor normalized_heads(const at::Tensor& qkv, std::int64_t groups, std::int64_t head_size,
                            const std::vector<Norm>& norms) {
  const auto queries_and_keys = [groups, head_size](const at::Tensor& x) -> std::vector<at::Tensor> {
    const Heads heads = heads_of(x, groups, head_size);
    return {heads.q, heads.k};
  };
  return normalized_parts(qkv, queries_and_keys, norms);
}

void Rotary::rotate(const Heads& heads, bool inverse) const {
  if (table.cos.defined()) kernels::rotate_(heads.q_and_k, table, position_ids_bs, 0, inverse);
}

Recomputable self_attention(const at::Tensor& qkv, const AttentionForm& form) {
  const std::vector<std::int64_t> shape{qkv.size(0), qkv.size(1), qkv.size(2) - 2 * form.groups * form.head_size};
  return attention_of({qkv}, shape, form, [groups = form.groups, size = form.head_size](const auto& tensors) {
    return heads_of(tensors[0], groups, size);
  });
}

Recomputable cross_attention(const at::Tensor& queries, const at::Tensor& keys_and_values, const AttentionForm& form) {
  return attention_of({queries, keys_and_values}, queries.sizes().vec(), form,
                      [groups = form.groups, size = form.head_size](const auto& tensors) {
                        const at::Tensor &q = tensors[0], &kv = tensors[1];
                        const auto pairs = kv.view({kv.size(0), kv.size(1), groups, 2, size});
                        return Heads{.q = q.view({q.size(0), q.size(1), groups, -1, size}),
                                     .k = pairs.select(3, 0),
                                     .v = pairs.select(3, 1),
                                     .q_and_k = {}};
                      });
}

namespace {

/// The first key that each query may see, [b, s] int32, where a window hides some; else as `rows` say.
at::Tensor first_keys(const QueryRows& rows, std::int64_t window) {
  if (window == 0 || window >= rows.begin + rows.s) return rows.first_key_bs;
  const auto first =
      at::arange(rows.begin, rows.begin + rows.s, at::TensorOptions().dtype(at::kInt).device(rows.device))
          .sub_(window - 1)
          .clamp_min_(0)
          .expand({rows.b, rows.s});
  return rows.first_key_bs.defined() ? at::maximum(first, rows.first_key_bs) : first.contiguous();
}

}  // namespace

kernels::AttentionOptions attention_options(const plan::SelfAttention& attention, const QueryRows& rows) {
  kernels::AttentionOptions options;
  options.scale = attention.scale;
  options.soft_cap = attention.variant.attn_logit_softcapping;
  options.causal = attention.causal;
  const std::int64_t window = attention.variant.sliding_window;
  options.first_key = first_keys(rows, window);
  if (!attention.causal && window > 0 && window < rows.s) {
    options.causal = true;
    options.ahead = window - 1;
  }
  return options;
}

at::Tensor sink_scores(const parallel::Parameter& sinks) {
  const at::Tensor scores = sinks.arrived().detach();
  return scores.to(scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

at::Tensor sink_scores(const BranchModules& branch) {
  return branch.sinks ? sink_scores(*branch.sinks) : branch.zero_sinks;
}

kernels::AttentionOptions attention_options(const BranchModules& branch, const QueryRows& rows) {
  kernels::AttentionOptions options = attention_options(std::get<plan::SelfAttention>(branch.spec.inner), rows);
  options.sinks = sink_scores(branch);
  return options;
}

kernels::AttentionOptions attention_options(const plan::CrossAttention& attention) {
  kernels::AttentionOptions options;
  options.scale = attention.scale;
  options.causal = false;
  return options;
}

}  // namespace megatron::model
