#include "megatron/model/latent_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/kernels/matmul.h"
#include "megatron/model/recomputed_once.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {

using parallel::RecomputeFunction;
using parallel::with_backward;
using parallel::without_autograd;
using Gradients = std::vector<at::Tensor>;

namespace {

const plan::Latents& latents_of(const BranchModules& branch) {
  return *std::get<plan::SelfAttention>(branch.spec.inner).latents;
}

/// The linear layers of a branch, by their places among BranchModules::in.
struct Projections {
  const parallel::ColumnParallelLinear *q_down, *q, *kv_down, *kv_up;  ///< q_down: null without q_rank
};
Projections projections_of(const BranchModules& branch) {
  const auto& in = branch.in;
  if (latents_of(branch).q_rank == 0) return {nullptr, &in.at(0), &in.at(1), &in.at(2)};
  return {&in.at(0), &in.at(1), &in.at(2), &in.at(3)};
}

/// What all ranks read, of the whole sequence where each has a part of it; backward the sum over ranks.
at::Tensor read_by_all(const at::Tensor& x, const comm::Group& tp, bool sequence_parallel) {
  if (tp.size() == 1) return x;
  const auto whole = without_autograd([&] { return sequence_parallel ? tp.all_gather(x.detach()) : x.detach(); });
  return with_backward({x}, whole, [tp, sequence_parallel](const Gradients& grads) -> Gradients {
    const auto dx = grads[0].contiguous();  // a sum that was made for this operator alone
    if (sequence_parallel) return {tp.reduce_scatter(dx)};
    tp.all_reduce(dx);
    return {dx};
  });
}

/// The first `features` of the last dimension, and the rest.
std::vector<at::Tensor> cut_features(const at::Tensor& x, std::int64_t features) {
  const auto parts = without_autograd([&]() -> std::vector<at::Tensor> {
    const auto all = x.detach();
    return {all.narrow(-1, 0, features).contiguous(), all.narrow(-1, features, all.size(-1) - features).contiguous()};
  });
  return with_backward({x}, parts, [](const Gradients& grads) -> Gradients { return {at::cat(grads, -1)}; });
}

/// Queries, keys and values in joined_heads(), or in its gradient. Views.
struct Joined {
  at::Tensor q_rope, q_nope, k_rope, k_nope, v;  ///< [s, b, n, features]

  Joined(const at::Tensor& qkv, const plan::Latents& latents, std::int64_t heads) {
    const auto split = qkv.view({qkv.size(0), qkv.size(1), heads, 3, latents.head_size()});
    const auto q = split.select(3, 0), k = split.select(3, 1);
    q_rope = q.narrow(-1, 0, latents.rope);
    q_nope = q.narrow(-1, latents.rope, latents.nope);
    k_rope = k.narrow(-1, 0, latents.rope);
    k_nope = k.narrow(-1, latents.rope, latents.nope);
    v = split.select(3, 2).narrow(-1, 0, latents.value);
  }
};

/// Each head's part of what the up projections give: [s, b, n, features].
at::Tensor by_head(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads});
}

/// Parts of heads [s, b, n, features] as a product with each head's matrix takes them, [n, s * b, features], and back.
at::Tensor heads_first(const at::Tensor& x) {
  return x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}).transpose(0, 1);
}
at::Tensor heads_last(const at::Tensor& x, std::int64_t s, std::int64_t b) {
  return x.transpose(0, 1).reshape({s, b, x.size(0), x.size(2)});
}

/// The up projection of keys and values by head, [n, nope + value, kv_rank].
at::Tensor up_projection(const BranchModules& branch) {
  const parallel::ParameterPtr& weight = projections_of(branch).kv_up->weight();
  const at::Tensor& value = weight->arrived();
  // In blocks of few bits the matrix has no values but what it multiplies.
  const auto dense =
      weight->in_blocks ? kernels::linear(at::eye(value.size(1), value.options()), value, &weight->packed, at::Tensor())
                              .t()
                              .contiguous()
                        : value.detach();
  return dense.view({branch.heads, -1, dense.size(1)});
}

/// The adapters beside the up projection that a sequence chose, by head.
struct AdaptedHeads {
  at::Tensor a, b;    ///< [r, kv_rank], [n, nope + value, r] times the scale
  at::Tensor factor;  ///< [n, 1, nope + value]; undefined: 1

  /// x [n, rows, features], from number `first` of a head on, times the factor; rounded once.
  at::Tensor scaled(const at::Tensor& x, std::int64_t first) const {
    return factor.defined() ? x.mul(factor.narrow(2, first, x.size(2))).to(x.scalar_type()) : x;
  }
};
std::optional<AdaptedHeads> adapted_heads(const BranchModules& branch, std::int64_t sequence) {
  const parallel::KeptAdaptersPtr& kept = projections_of(branch).kv_up->kept();
  const auto matrices = kept ? kept->of_sequence(sequence) : std::nullopt;
  if (!matrices) return std::nullopt;
  const at::Tensor &b = matrices->b, &factor = matrices->factor;
  return AdaptedHeads{.a = matrices->a,
                      .b = b.view({branch.heads, -1, b.size(1)}).mul(matrices->scale),
                      .factor = factor.defined() ? factor.view({branch.heads, 1, -1}) : factor};
}

}  // namespace

LatentInput compressed(const at::Tensor& x, RecomputeFunction again, const BranchModules& branch, const comm::Group& tp,
                       bool sequence_parallel, const at::Tensor& samples) {
  const Projections projections = projections_of(branch);
  const auto whole = read_by_all(x, tp, sequence_parallel);
  // What no norm gives again, dropped embeddings, is kept in parts too.
  if (!again && sequence_parallel && tp.size() > 1) again = [part = x.detach()] { return part; };
  RecomputeFunction whole_again;
  if (again) {
    const auto once = std::make_shared<RecomputedOnce<at::Tensor>>([again = std::move(again), tp, sequence_parallel] {
      return sequence_parallel ? tp.all_gather(again()) : again();
    });
    whole_again = [once] { return once->value(); };
  }
  LatentInput made;
  if (projections.q_down != nullptr) {
    const Normed latent =
        normalized(projections.q_down->forward(whole, whole_again, samples), branch.head_norms.front());
    made.q = projections.q->forward(latent.y, latent.recompute_fn, samples);
  } else {
    made.q = projections.q->forward(whole, whole_again, samples);
  }
  const auto parts =
      cut_features(projections.kv_down->forward(whole, whole_again, samples), latents_of(branch).kv_rank);
  const Normed latent = normalized(parts[0], branch.head_norms.back());
  made.latent = latent.y;
  made.latent_again = latent.recompute_fn;
  made.key = parts[1];
  return made;
}

at::Tensor joined_heads(const LatentInput& in, const BranchModules& branch, const at::Tensor& samples) {
  const plan::Latents& latents = latents_of(branch);
  const std::int64_t n = branch.heads, s = in.q.size(0), b = in.q.size(1), d = latents.head_size();
  const auto kv = projections_of(branch).kv_up->forward(in.latent, in.latent_again, samples);
  const auto qkv = without_autograd([&] {
    auto all = at::empty({s, b, n * 3 * d}, in.q.options());
    const auto split = all.view({s, b, n, 3, d});
    if (d > latents.query()) split.narrow(3, 0, 2).narrow(-1, latents.query(), d - latents.query()).zero_();
    if (d > latents.value) split.select(3, 2).narrow(-1, latents.value, d - latents.value).zero_();
    const Joined to(all, latents, n);
    const auto q = by_head(in.q.detach(), n), up = by_head(kv.detach(), n);
    to.q_nope.copy_(q.narrow(-1, 0, latents.nope));
    to.q_rope.copy_(q.narrow(-1, latents.nope, latents.rope));
    to.k_nope.copy_(up.narrow(-1, 0, latents.nope));
    to.k_rope.copy_(in.key.detach().unsqueeze(2));
    to.v.copy_(up.narrow(-1, latents.nope, latents.value));
    return all;
  });
  return with_backward({in.q, kv, in.key}, qkv, [latents, n](const Gradients& grads) -> Gradients {
    const Joined from(grads[0].contiguous(), latents, n);
    const std::int64_t s = from.v.size(0), b = from.v.size(1);
    return {at::cat({from.q_nope, from.q_rope}, -1).view({s, b, -1}),
            at::cat({from.k_nope, from.v}, -1).view({s, b, -1}), from.k_rope.sum(2)};
  });
}

Recomputable without_padding(const Recomputable& out, const BranchModules& branch) {
  const std::int64_t n = branch.heads, d = branch.head_size, value = latents_of(branch).value;
  if (value == d) return out;
  const auto narrowed = [n, d, value](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), n, d}).narrow(-1, 0, value).reshape({x.size(0), x.size(1), n * value});
  };
  const auto kept = out.y.detach();
  const auto y = without_autograd([&] { return narrowed(kept); });
  auto backward = [n, d, value](const Gradients& grads) -> Gradients {
    const std::int64_t s = grads[0].size(0), b = grads[0].size(1);
    const auto dx = at::zeros({s, b, n, d}, grads[0].options());
    dx.narrow(-1, 0, value).copy_(grads[0].reshape({s, b, n, value}));
    return {dx.view({s, b, n * d})};
  };
  RecomputeFunction again = [kept, narrowed] { return narrowed(kept); };
  if (out.recompute_fn) again = [inner = out.recompute_fn, narrowed] { return narrowed(inner()); };
  return {with_backward({out.y}, y, std::move(backward)), std::move(again)};
}

LatentRows latent_rows(const LatentInput& in, const BranchModules& branch, const kernels::RopeTable& table,
                       const at::Tensor& position_ids_bs, std::int64_t sequence) {
  const plan::Latents& latents = latents_of(branch);
  const std::int64_t s = in.q.size(0), b = in.q.size(1);
  const auto q = by_head(in.q, branch.heads);
  const auto adapted = adapted_heads(branch, sequence);
  auto own = heads_first(q.narrow(-1, 0, latents.nope));
  if (adapted) own = adapted->scaled(own, 0);
  const auto absorbed = at::matmul(own, up_projection(branch).narrow(1, 0, latents.nope));
  if (adapted) absorbed.add_(at::matmul(at::matmul(own, adapted->b.narrow(1, 0, latents.nope)), adapted->a));
  LatentRows rows{
      .queries = at::cat({q.narrow(-1, latents.nope, latents.rope), heads_last(absorbed, s, b)}, -1).unsqueeze(2),
      .keys = at::cat({in.key, in.latent}, -1).unsqueeze(2)};
  if (table.cos.defined())
    for (const at::Tensor* part : {&rows.queries, &rows.keys}) kernels::rotate_(*part, table, position_ids_bs, 0);
  return rows;
}

at::Tensor values_of_rows(const at::Tensor& out, const BranchModules& branch, std::int64_t sequence) {
  const plan::Latents& latents = latents_of(branch);
  const std::int64_t s = out.size(0), b = out.size(1);
  const auto latent = heads_first(out.narrow(-1, latents.rope, latents.kv_rank));
  const auto up = up_projection(branch).narrow(1, latents.nope, latents.value);
  auto values = at::matmul(latent, up.transpose(1, 2));
  if (const auto adapted = adapted_heads(branch, sequence)) {
    const auto own = adapted->b.narrow(1, latents.nope, latents.value).transpose(1, 2);
    values.add_(at::matmul(at::matmul(latent, adapted->a.t()), own));
    values = adapted->scaled(values, latents.nope);
  }
  return heads_last(values, s, b).reshape({s, b, -1});
}

}  // namespace megatron::model
