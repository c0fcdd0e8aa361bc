#include "megatron/model/experts/expert_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/kernels/matmul.h"
#include "megatron/parallel/backward.h"

// T tokens [s * b], n rows of experts, h hidden, f features of this rank.
namespace megatron::model {
namespace {

using parallel::ParameterPtr;
using Offsets = std::vector<std::int64_t>;

at::ScalarType wide_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

kernels::Groups groups_of(const std::vector<ParameterPtr>& weights, const Offsets& offsets) {
  kernels::Groups groups{.weights = {}, .offsets = offsets};
  for (const ParameterPtr& weight : weights) {
    groups.weights.push_back(weight->arrived().detach());
    groups.packed.push_back(&weight->packed);
  }
  return groups;
}

/// Adds dy^T x of each group to the gradients of the weights.
void write_gradients(const std::vector<ParameterPtr>& weights, const at::Tensor& dy, const at::Tensor& x,
                     const Offsets& offsets) {
  std::vector<parallel::Contribution> contributions(weights.begin(), weights.end());
  kernels::Groups into{.weights = {}, .offsets = offsets};
  std::vector<double> betas;
  for (const parallel::Contribution& contribution : contributions) {
    into.weights.push_back(contribution.target());
    betas.push_back(contribution.beta());
  }
  kernels::grouped_weight_gradient(into, dy, x, betas);
  for (parallel::Contribution& contribution : contributions) contribution.written();
}

/// Of a weight [n, h] that every rank has whole, whose products are taken in `dy`'s type.
void write_wide_gradient(const ParameterPtr& weight, const at::Tensor& dy, const at::Tensor& x_th) {
  parallel::Contribution contribution(weight, parallel::Contribution::When::WithTheRest);
  kernels::linear_weight_gradient(contribution.target(), dy.contiguous(), x_th.to(dy.scalar_type()),
                                  contribution.beta());
  contribution.written();
}

at::Tensor wide_product(const at::Tensor& x_th, const ParameterPtr& weight) {
  const at::ScalarType wide = wide_type(x_th);
  return kernels::linear(x_th.to(wide), weight->arrived().detach().to(wide));
}

at::Tensor scaled(const at::Tensor& rows, const at::Tensor& weights) {
  return weights.defined() ? rows * weights.unsqueeze(1).to(rows.scalar_type()) : rows;
}

}  // namespace

/// What MLPs made of rows.
struct ExpertLayer::Rows {
  at::Tensor weights;  ///< [n] what each row counts; undefined: 1
  at::Tensor u;        ///< [n, fc1's rows]
  at::Tensor y;        ///< [n, f] the activation of u, unless it is computed again
};

/// What backward needs of the inside.
struct ExpertLayer::Inner {
  at::Tensor logits, experts;  ///< [T, E], [T, k]
  std::optional<Routes> routes;
  Rows rows, shared;
};

ExpertLayer::ExpertLayer(const parallel::ParameterStore& parameters, const std::string& prefix,
                         const plan::Experts& experts, const Options& options, comm::Group tp, comm::Group ep)
    : spec_(experts), options_(options), tp_(std::move(tp)), ep_(std::move(ep)) {
  const auto weight = [&](const std::string& name) { return parameters.get(concat(prefix, "mlp.", name, ".weight")); };
  router_ = weight("router");
  experts_.gated = shared_.gated = spec_.expert.gated;
  const std::int64_t local = spec_.count / ep_.size();
  for (std::int64_t e = ep_.rank() * local; e < (ep_.rank() + 1) * local; ++e) {
    experts_.fc1.push_back(weight(concat("experts.local_experts.", e, ".linear_fc1")));
    experts_.fc2.push_back(weight(concat("experts.local_experts.", e, ".linear_fc2")));
  }
  if (spec_.shared_width == 0) return;
  shared_.fc1.push_back(weight("shared_experts.linear_fc1"));
  shared_.fc2.push_back(weight("shared_experts.linear_fc2"));
  if (spec_.shared_gate) shared_gate_ = weight("shared_experts.gate");
}

std::int64_t ExpertLayer::most_few_rows() const {
  std::int64_t most = kernels::most_few_rows(router_->value.to(wide_type(router_->value)));
  const auto at_most = [&](const at::Tensor& weight) { most = std::min(most, kernels::most_few_rows(weight)); };
  if (shared_gate_) at_most(shared_gate_->value.to(wide_type(shared_gate_->value)));
  for (const auto* weights : {&experts_.fc1, &experts_.fc2, &shared_.fc1, &shared_.fc2})
    for (const ParameterPtr& weight : *weights) at_most(weight->value);
  return most;
}

at::Tensor ExpertLayer::activate(const at::Tensor& u, bool gated) const {
  return gated ? kernels::gated_activation(u, options_.activation) : kernels::activation(u, options_.activation);
}

ExpertLayer::Rows ExpertLayer::expand(const at::Tensor& x, const at::Tensor& weights, const Mlps& mlps,
                                      const Offsets& offsets) const {
  Rows rows{.weights = weights, .u = kernels::grouped_linear(x, groups_of(mlps.fc1, offsets)), .y = {}};
  rows.y = activate(rows.u, mlps.gated);
  return rows;
}

/// The sequence whole, as rows [T, h].
at::Tensor ExpertLayer::whole(const at::Tensor& part) const {
  const auto all = options_.sequence_parallel ? tp_.all_gather(part.contiguous(), 0) : part;
  return all.reshape({-1, all.size(-1)});
}

ExpertLayer::Inner ExpertLayer::inner(const at::Tensor& x_th) const {
  Inner inner;
  inner.logits = wide_product(x_th, router_);
  inner.experts = chosen_experts(inner.logits, spec_.top_k);
  inner.routes.emplace(inner.experts, spec_.count, ep_);
  const auto weights = expert_weights(inner.logits, inner.experts, spec_.router);
  inner.rows = expand(inner.routes->to_experts(x_th), inner.routes->copies_to_experts(weights), experts_,
                      inner.routes->offsets());
  if (shared_.fc1.empty()) return inner;
  const auto gate = shared_gate_ ? at::sigmoid(wide_product(x_th, shared_gate_)).squeeze(1) : at::Tensor();
  inner.shared = expand(x_th, gate, shared_, {0, x_th.size(0)});
  return inner;
}

/// The gradients of weights, now or when they are put off to. Holds what they are products of.
struct ExpertLayer::WeightWork {
  const ExpertLayer layer;
  parallel::RecomputeFunction x_fn;
  at::Tensor dout_part;
  Routes routes;
  at::Tensor du, y, shared_du, shared_y;  ///< y times what the rows count

  void write(const at::Tensor& x_th, const at::Tensor& dout_th, const at::Tensor& dz) const {
    write_gradients(layer.experts_.fc1, du, routes.to_experts(x_th), routes.offsets());
    write_gradients(layer.experts_.fc2, dz, y, routes.offsets());
    if (layer.shared_.fc1.empty()) return;
    const Offsets all{0, x_th.size(0)};
    write_gradients(layer.shared_.fc1, shared_du, x_th, all);
    write_gradients(layer.shared_.fc2, dout_th, shared_y, all);
  }
  void operator()() const {
    const auto dout_th = layer.whole(dout_part);
    write(layer.whole(x_fn()), dout_th, routes.to_experts(dout_th));
  }
};

class ExpertLayer::Backward {
 public:
  Backward(const ExpertLayer& layer, parallel::RecomputeFunction x_fn, std::optional<Inner> kept, RouterSite site,
           std::int64_t batch)
      : layer_(layer), x_fn_(std::move(x_fn)), kept_(std::move(kept)), site_(std::move(site)), batch_(batch) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& grads) {
    const auto dout_part = grads[0].contiguous();
    const auto dout = layer_.whole(dout_part), x = layer_.whole(x_fn_());
    Inner inner = kept_ ? std::move(*kept_) : layer_.inner(x);
    kept_.reset();
    const Routes& routes = *inner.routes;
    const auto dz = routes.to_experts(dout);
    at::Tensor dweights, dgate, y, shared_y, du, shared_du;
    du = through(inner.rows, layer_.experts_, dz, routes.offsets(), dweights, y);
    auto dx = routes.back(kernels::grouped_input_gradient(du, groups_of(layer_.experts_.fc1, routes.offsets()))).sum(1);
    const auto dlogits = router_backward(inner, routes.back(dweights.unsqueeze(1)).squeeze(2));
    add_wide(dx, dlogits, layer_.router_, x);
    if (!layer_.shared_.fc1.empty()) {
      const Offsets all{0, x.size(0)};
      shared_du = through(inner.shared, layer_.shared_, dout, all, dgate, shared_y);
      dx.add_(kernels::grouped_input_gradient(shared_du, groups_of(layer_.shared_.fc1, all)));
      if (layer_.shared_gate_) {
        const at::Tensor& gate = inner.shared.weights;
        add_wide(dx, (dgate * gate * (1 - gate)).unsqueeze(1), layer_.shared_gate_, x);
      }
    }
    const WeightWork work{layer_, x_fn_, dout_part, routes, du, y, shared_du, shared_y};
    if (layer_.router_->deferring())
      layer_.router_->contribute(work);
    else
      work.write(x, dout, dz);
    const auto shaped = dx.view({-1, batch_, dx.size(1)});
    if (layer_.options_.sequence_parallel) return {layer_.tp_.reduce_scatter(shaped, 0)};
    layer_.tp_.all_reduce(shaped);
    return {shaped};
  }

 private:
  /// The gradient of u from that of what the second layer gives; `dweights`: of what each row counts, and `y`: what the
  /// second layer took.
  at::Tensor through(const Rows& rows, const Mlps& mlps, const at::Tensor& dz, const Offsets& offsets,
                     at::Tensor& dweights, at::Tensor& y) const {
    const auto activated = rows.y.defined() ? rows.y : layer_.activate(rows.u, mlps.gated);
    const auto dy = kernels::grouped_input_gradient(dz, groups_of(mlps.fc2, offsets));
    if (rows.weights.defined()) dweights = (dy.to(wide_type(dy)) * activated).sum(-1);
    y = scaled(activated, rows.weights);
    const auto dactivated = scaled(dy, rows.weights);
    return mlps.gated ? kernels::gated_activation_backward(dactivated, rows.u, layer_.options_.activation)
                      : kernels::activation_backward(dactivated, rows.u, layer_.options_.activation);
  }

  /// The gradient of the logits: that of the experts' weights, of which each tensor-parallel rank has a part, and on
  /// the first one that of the auxiliary losses.
  at::Tensor router_backward(const Inner& inner, const at::Tensor& dweights_tk) const {
    const c10::AutoGradMode on(true);
    const plan::Router& router = layer_.spec_.router;
    parallel::GraphLeaf leaf(inner.logits);
    const auto logits = leaf.take();
    auto sum = (expert_weights(logits, inner.experts, router) * dweights_tk).sum();
    const bool losses = router.aux_loss != 0 || router.z_loss != 0;
    if (losses && site_.sequence_weights_b.defined() && layer_.tp_.rank() == 0) {
      const auto by_sequence = [&](const at::Tensor& x) { return x.view({-1, batch_, x.size(-1)}); };
      const RouterLosses of = router_losses(by_sequence(logits), by_sequence(inner.experts), router, site_.sequence);
      const auto each = of.balance * router.aux_loss + of.z * router.z_loss;
      sum = sum + (each * site_.sequence_weights_b.to(each.options())).sum();
    }
    parallel::GraphRoot(sum).backward(at::ones_like(sum));
    return leaf.take_gradient();
  }

  static void add_wide(const at::Tensor& dx, const at::Tensor& dy, const ParameterPtr& weight, const at::Tensor& x) {
    dx.add_(at::mm(dy, weight->value.detach().to(dy.scalar_type())));
    write_wide_gradient(weight, dy, x);
  }

  ExpertLayer layer_;
  parallel::RecomputeFunction x_fn_;
  std::optional<Inner> kept_;
  RouterSite site_;
  std::int64_t batch_;
};

at::Tensor ExpertLayer::forward(const at::Tensor& x, parallel::RecomputeFunction recompute_fn, const RouterSite& site,
                                parallel::Value value) const {
  std::optional<Inner> kept;
  const auto out = parallel::without_autograd([&] {
    const auto x_th = whole(x.detach());
    kept = inner(x_th);
    if (value == parallel::Value::Unread) return at::empty(x.sizes(), x.options());
    const Routes& routes = *kept->routes;
    const auto z =
        kernels::grouped_linear(scaled(kept->rows.y, kept->rows.weights), groups_of(experts_.fc2, routes.offsets()));
    auto sum = routes.back(z).sum(1);
    if (!shared_.fc2.empty())
      sum.add_(kernels::grouped_linear(scaled(kept->shared.y, kept->shared.weights),
                                       groups_of(shared_.fc2, {0, x_th.size(0)})));
    const auto shaped = sum.view({-1, x.size(1), x.size(2)});
    if (options_.sequence_parallel) return tp_.reduce_scatter(shaped, 0);
    tp_.all_reduce(shaped);
    return shaped;
  });
  if (!options_.keep_activation) kept->rows.y = kept->shared.y = at::Tensor();
  if (options_.recompute) kept.reset();
  if (!recompute_fn) recompute_fn = [same = x.detach()] { return same; };
  std::vector<at::Tensor> inputs{x, router_->value};
  for (const Mlps* mlps : {&experts_, &shared_})
    for (const auto* weights : {&mlps->fc1, &mlps->fc2})
      for (const ParameterPtr& weight : *weights) inputs.push_back(weight->value);
  if (shared_gate_) inputs.push_back(shared_gate_->value);
  const auto backward = std::make_shared<Backward>(*this, std::move(recompute_fn), std::move(kept), site, x.size(1));
  return parallel::with_backward(inputs, out,
                                 [backward](const std::vector<at::Tensor>& grads) { return (*backward)(grads); });
}

}  // namespace megatron::model
