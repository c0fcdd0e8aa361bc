#include "megatron/model/experts/expert_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/experts.h"
#include "megatron/kernels/matmul.h"
#include "megatron/parallel/backward.h"

// T tokens [s * b], R of them that this rank routes (all, or where it sends its part these), n rows of experts, k
// experts of a token, h hidden, f features of this rank.
namespace megatron::model {
namespace {

using parallel::ParameterPtr;
using Offsets = std::vector<std::int64_t>;

at::ScalarType wide_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

kernels::Groups groups_of(const std::vector<ParameterPtr>& weights, const Offsets& offsets,
                          const std::vector<ParameterPtr>& biases = {}) {
  kernels::Groups groups{.weights = {}, .offsets = offsets};
  for (const ParameterPtr& bias : biases) groups.biases.push_back(bias->arrived().detach());
  for (const ParameterPtr& weight : weights) {
    groups.weights.push_back(weight->arrived().detach());
    groups.packed.push_back(&weight->packed);
  }
  return groups;
}

/// Adds the sum of each group's rows of dy, each times its weight (undefined: 1), to the gradients of the biases.
void write_bias_gradients(const std::vector<ParameterPtr>& biases, const at::Tensor& dy, const at::Tensor& weights,
                          const Offsets& offsets) {
  if (biases.front()->frozen()) return;
  std::vector<parallel::Contribution> contributions;
  std::vector<at::Tensor> into;
  std::vector<double> betas;
  for (const ParameterPtr& bias : biases) {
    contributions.emplace_back(bias, parallel::Contribution::When::WithTheRest);
    into.push_back(contributions.back().target());
    betas.push_back(contributions.back().beta());
  }
  kernels::grouped_bias_gradient(into, offsets, dy, weights, betas);
  for (parallel::Contribution& contribution : contributions) contribution.written();
}

/// The product of each row of dz with the bias of its group: [n], in float32 or wider.
at::Tensor products_with(const std::vector<ParameterPtr>& biases, const at::Tensor& dz, const Offsets& offsets) {
  const at::ScalarType wide = wide_type(dz);
  std::vector<at::Tensor> products;
  for (std::size_t e = 0; e < biases.size(); ++e)
    products.push_back(
        at::mv(dz.narrow(0, offsets[e], offsets[e + 1] - offsets[e]).to(wide), biases[e]->arrived().detach().to(wide)));
  return at::cat(products);
}

/// Of a weight [n, h] that every rank has whole, whose products are taken in `dy`'s type.
void write_wide_gradient(const ParameterPtr& weight, const at::Tensor& dy, const at::Tensor& x_th) {
  if (weight->frozen()) return;
  parallel::Contribution contribution(weight, parallel::Contribution::When::WithTheRest);
  kernels::linear_weight_gradient(contribution.target(), dy.contiguous(), x_th.to(dy.scalar_type()),
                                  contribution.beta());
  contribution.written();
}

at::Tensor wide_product(const at::Tensor& x_th, const ParameterPtr& weight) {
  const at::ScalarType wide = wide_type(x_th);
  return kernels::linear(x_th.to(wide), weight->arrived().detach().to(wide));
}

}  // namespace

struct ExpertLayer::Counted {
  RouterCounts counts;
  at::Tensor losses;  ///< [2] float64, balance and z, on the device so that no backward pass waits for it
};

/// What backward needs of the inside.
struct ExpertLayer::Inner {
  at::Tensor logits, experts, weights;  ///< [T, E], [T, k], [T, k]
  double dropped = 0;                   ///< copies of these; counted where experts are apart alone
  at::Tensor gate;                      ///< [T] what the shared expert counts; undefined: 1
  std::optional<Routes> routes;
  at::Tensor u, shared_u;  ///< [n, fc1's rows], [T, fc1's rows]
  at::Tensor y, shared_y;  ///< [n, f], [T, f] their activations: for the forward pass alone
  /// Of rows of experts [n] and of the shared one [T], for what their adapters drop; undefined: nothing.
  at::Tensor ids, shared_ids;
  RowAdapters adapters, shared_adapters;  ///< of the same rows, kept beside the weights
};

ExpertLayer::ExpertLayer(const parallel::ParameterStore& parameters, const std::string& prefix,
                         const plan::Experts& experts, const Options& options, comm::Group tp, comm::Group ep)
    : spec_(experts), options_(options), tp_(std::move(tp)), ep_(std::move(ep)), counted_(std::make_shared<Counted>()) {
  counted_->counts.loads.assign(static_cast<std::size_t>(spec_.count), 0.0);
  const auto weight = [&](const std::string& name) { return parameters.get(concat(prefix, "mlp.", name, ".weight")); };
  router_ = weight("router");
  if (spec_.router.bias) bias_ = parameters.get(prefix + plan::Experts::kBias);
  if (spec_.router.linear_bias) router_bias_ = parameters.get(prefix + "mlp.router.bias");
  experts_.gated = shared_.gated = spec_.expert.gated;
  for (std::int64_t e = first_expert() + local_experts() - 1; e >= first_expert(); --e) {  // as their rows come
    experts_.fc1.push_back(weight(concat("experts.local_experts.", e, ".linear_fc1")));
    experts_.fc2.push_back(weight(concat("experts.local_experts.", e, ".linear_fc2")));
    if (!spec_.expert.bias) continue;
    const auto bias = [&](const char* layer) {
      return parameters.get(concat(prefix, "mlp.experts.local_experts.", e, ".", layer, ".bias"));
    };
    experts_.bias1.push_back(bias("linear_fc1"));
    experts_.bias2.push_back(bias("linear_fc2"));
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

RouterCounts ExpertLayer::take_counts() const {
  RouterCounts taken{.loads = std::vector<double>(counted_->counts.loads.size(), 0.0)};
  std::swap(taken, counted_->counts);
  if (counted_->losses.defined()) {
    const auto losses = std::exchange(counted_->losses, {}).cpu();
    taken.balance = losses[0].item<double>();
    taken.z = losses[1].item<double>();
  }
  return taken;
}

/// The first products, and `y` of them where `activations` are needed. `ids`: of the rows, for what adapters drop.
at::Tensor ExpertLayer::first(const at::Tensor& x, const Mlps& mlps, const Offsets& offsets, const at::Tensor& ids,
                              const RowAdapters& kept, parallel::Value activations, at::Tensor& y) const {
  const kernels::Groups groups = groups_of(mlps.fc1, offsets, mlps.bias1);
  const bool unread = activations == parallel::Value::Unread, chosen = mlps.kept1 && mlps.kept1->chosen(kept);
  if (unread || mlps.adapter1 || chosen) {
    auto u = kernels::grouped_linear(x, groups);
    if (mlps.adapter1) mlps.adapter1->add_to(u, x, offsets, ids);
    if (chosen) mlps.kept1->add_to(u, x, offsets, kept);
    if (!unread)
      y = mlps.gated ? kernels::gated_activation(u, options_.activation) : kernels::activation(u, options_.activation);
    return u;
  }
  kernels::ActivatedOutput out = kernels::grouped_linear_activation(x, groups, options_.activation, mlps.gated);
  y = std::move(out.y);
  return std::move(out.u);
}

/// The second products, with `biases`.
at::Tensor ExpertLayer::second(const at::Tensor& y, const Mlps& mlps, const Offsets& offsets, const at::Tensor& ids,
                               const RowAdapters& kept, const std::vector<ParameterPtr>& biases) const {
  auto z = kernels::grouped_linear(y, groups_of(mlps.fc2, offsets, biases));
  if (mlps.adapter2) mlps.adapter2->add_to(z, y, offsets, ids);
  if (mlps.kept2 && mlps.kept2->chosen(kept)) mlps.kept2->add_to(z, y, offsets, kept);
  return z;
}

/// `site` of the `positions` of the sequence that this rank routes.
kernels::Dropout ExpertLayer::placed(kernels::Dropout place, std::int64_t positions) const {
  if (sends_part()) {
    place.position_offset += tp_.rank() * positions;
    place.jump_at -= tp_.rank() * positions;
  }
  return place;
}

/// Numbers of tokens that are no other token's of any sample, [positions * b] int64.
at::Tensor ExpertLayer::ids_of(const RouterSite& site, std::int64_t positions, const kernels::Dropout& place) const {
  constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;
  std::vector<std::int64_t> at;
  for (std::int64_t row = 0; row < positions; ++row) at.push_back(place.position_of(row));
  const auto samples = site.adapted_samples.to(at::kLong);
  return (at::tensor(at, at::kLong).unsqueeze(1) + samples * kMaxPositions).view({-1});
}

/// Those of rows of experts [n], by expert too, on the CPU.
at::Tensor ExpertLayer::numbered(const at::Tensor& ids, const Offsets& offsets) const {
  const auto own = ids.to(at::kCPU).clone();
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    own.narrow(0, offsets[e], offsets[e + 1] - offsets[e])
        .mul_(spec_.count)
        .add_(first_expert() + local_experts() - 1 - static_cast<std::int64_t>(e));
  return own;
}

/// One of the parameters that are trained; null: none is.
ParameterPtr ExpertLayer::trained() const {
  if (!router_->frozen()) return router_;
  for (const ExpertAdaptersPtr& adapter : {experts_.adapter1, experts_.adapter2, shared_.adapter1, shared_.adapter2})
    if (adapter) return adapter->trained();
  return nullptr;
}

/// What the router's input is multiplied by, [R, h]; undefined: 1.
at::Tensor ExpertLayer::jitter(const at::Tensor& x_rh, std::int64_t batch, const RouterSite& site) const {
  if (!site.training || spec_.router.jitter == 0) return {};
  const std::int64_t positions = x_rh.size(0) / batch;
  return kernels::jitter_factors(placed(site.jitter, positions), spec_.router.jitter, positions, batch, x_rh.size(1),
                                 wide_type(x_rh), x_rh.device())
      .view(x_rh.sizes());
}

/// Standard normal numbers [R, E] in place of the router's logits, which need not be computed; undefined: there are
/// none.
at::Tensor ExpertLayer::drawn_logits(const at::Tensor& x_rh, std::int64_t batch, const RouterSite& site) const {
  if (!spec_.router.drawn || !site.logits.sample_ids.defined()) return {};
  const std::int64_t positions = x_rh.size(0) / batch;
  const auto even = kernels::jitter_factors(placed(site.logits, positions), 1, positions, batch, spec_.count,
                                            at::kDouble, x_rh.device());
  return even.sub_(1).erfinv_().mul_(std::numbers::sqrt2).to(wide_type(x_rh)).view({x_rh.size(0), spec_.count});
}

/// Those that are added to what the second products of all ranks that split an expert sum up to: on one of them.
std::vector<ParameterPtr> ExpertLayer::biases_of_sum() const {
  return slice() == 0 ? experts_.bias2 : std::vector<ParameterPtr>();
}

/// Rows of a sequence: what this rank routes to experts, and what it gives the shared one.
struct ExpertLayer::Rows {
  at::Tensor routed;  ///< [R, h]
  at::Tensor all;     ///< [T, h]; undefined where nobody reads it
};

ExpertLayer::Rows ExpertLayer::rows_of(const at::Tensor& part) const {
  const auto flat = [](const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); };
  const auto whole = [&] { return flat(options_.sequence_parallel ? tp_.all_gather(part.contiguous(), 0) : part); };
  if (sends_part()) return {flat(part), shared_.fc1.empty() ? at::Tensor() : whole()};
  const auto all = whole();
  return {all, all};
}

/// The sum over tp of rows [T, h], as the stream has it.
at::Tensor ExpertLayer::summed(const at::Tensor& rows, std::int64_t batch) const {
  const auto shaped = rows.view({-1, batch, rows.size(1)});
  if (options_.sequence_parallel) return tp_.reduce_scatter(shaped, 0);
  tp_.all_reduce(shaped);
  return shaped;
}

/// Rows [R, h] that are this rank's own, plus its share of the sum over tp of `all_rows` [T, h] (undefined: nothing).
at::Tensor ExpertLayer::joined(const at::Tensor& own_rows, const at::Tensor& all_rows, std::int64_t batch) const {
  const auto shaped = own_rows.view({-1, batch, own_rows.size(1)});
  if (all_rows.defined()) shaped.add_(summed(all_rows, batch));
  return shaped;
}

/// Of all tokens [T, c] those that this rank routes, [R, c].
at::Tensor ExpertLayer::own(const at::Tensor& of_all) const {
  if (!sends_part()) return of_all;
  const std::int64_t rows = of_all.size(0) / tp_.size();
  return of_all.narrow(0, tp_.rank() * rows, rows);
}

/// Of experts [R, k] the places that their copies go to, numbered through the ranks of `ep`, [R, k * slices]: each rank
/// has the slices of its experts one after the other.
at::Tensor ExpertLayer::places(const at::Tensor& experts) const {
  const std::int64_t slices = options_.slices, local = local_experts();
  const auto of_first_slice = experts + experts.floor_divide(local) * ((slices - 1) * local);
  return (of_first_slice.unsqueeze(-1) + at::arange(slices, experts.options()) * local)
      .masked_fill(experts.lt(0).unsqueeze(-1), -1)
      .flatten(1);
}

/// Numbers of copies, [R, k], for each of their places.
at::Tensor ExpertLayer::of_places(const at::Tensor& numbers) const {
  if (!apart() || within_tp()) return numbers;
  return numbers.unsqueeze(-1).expand({numbers.size(0), numbers.size(1), options_.slices}).flatten(1);
}

/// `kept` with -1 for tokens of other shares. `experts` [T, k]: those chosen, whatever was kept of them.
at::Tensor ExpertLayer::of_share(const at::Tensor& kept, const at::Tensor& experts, int shares, int share) const {
  return shares == 1 ? kept : kept.masked_fill(experts.sum(-1, true).remainder(shares).ne(share), -1);
}

/// Of copies `kept` [T, k] of tokens that have chosen `experts`.
Routes ExpertLayer::routes_of(const at::Tensor& kept, const at::Tensor& experts) const {
  if (!apart()) return {kept, spec_.count, ep_};
  const std::int64_t count = spec_.count * options_.slices;
  if (sends_part()) return {places(own(kept)), count, ep_};
  if (!within_tp()) return {places(of_share(kept, experts, tp_.size(), tp_.rank())), count, ep_};
  const auto here = of_share(kept, experts, tp_.size() / ep_.size(), tp_.rank() / ep_.size()) - first_expert();
  return {here.masked_fill(here.lt(0).logical_or(here.ge(local_experts())), -1), local_experts(), {}};
}

/// Chooses experts for the rows x [R, h], where to send them, and what each expert counts.
void ExpertLayer::route(Inner& inner, const at::Tensor& x_rh, std::int64_t batch, const RouterSite& site) const {
  inner.logits = drawn_logits(x_rh, batch, site);
  if (!inner.logits.defined()) {
    const auto factors = jitter(x_rh, batch, site);
    inner.logits = wide_product(factors.defined() ? x_rh.to(factors.scalar_type()) * factors : x_rh, router_);
    if (router_bias_) inner.logits.add_(router_bias_->arrived().detach());
  }
  // A capacity is one of whole sequences, and so is the load that the auxiliary loss evens out.
  if (sends_part()) inner.logits = tp_.all_gather(inner.logits, 0);
  inner.experts =
      chosen_experts(inner.logits, spec_.router, spec_.top_k, bias_ ? bias_->arrived().detach() : at::Tensor());
  inner.weights = expert_weights(inner.logits, inner.experts, spec_.router);
  const bool drops = spec_.capacity_factor > 0 && site.training;
  const auto kept = drops ? kept_experts(inner.experts, inner.weights, spec_, batch, site.sequence) : inner.experts;
  if (drops && apart()) inner.dropped = static_cast<double>(kept.lt(0).sum().item<std::int64_t>());
  inner.routes.emplace(routes_of(kept, inner.experts));
}

/// Which adapters beside the weights the rows have that this rank computes: those of the sequences of their tokens, [s,
/// b]. Ranks of `ep` need not have chosen the same ones.
void ExpertLayer::choose_adapters(Inner& inner, const Rows& x, std::int64_t batch) const {
  if (!choice_ || (choice_->groups().empty() && ep_.size() == 1)) return;
  const std::vector<std::int64_t> of_sequences = choice_->of_each(batch);
  const bool few = x.routed.size(0) == batch;
  const auto of_tokens = [&](std::int64_t rows) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t row = 0; row < rows; ++row)
      numbers.push_back(of_sequences[static_cast<std::size_t>(row % batch)]);
    return numbers;
  };
  if (shared_.kept1 || shared_.kept2) inner.shared_adapters = {of_tokens(x.all.size(0)), few};
  if (!experts_.kept1 && !experts_.kept2) return;
  const auto tokens = at::tensor(of_tokens(x.routed.size(0)), at::kLong).to(x.routed.device());
  const auto copies = tokens.unsqueeze(1).expand({-1, spec_.top_k}).contiguous();
  const auto numbers = inner.routes->copies_to_experts(of_places(copies)).take().cpu().contiguous();
  const auto* const first = numbers.const_data_ptr<std::int64_t>();
  inner.adapters = {{first, first + numbers.numel()}, few};
}

ExpertLayer::Inner ExpertLayer::inner(const Rows& x, std::int64_t batch, const RouterSite& site,
                                      parallel::Value activations) const {
  Inner inner;
  route(inner, x.routed, batch, site);
  Coming rows = inner.routes->to_experts(x.routed);
  const bool adapts = experts_.adapter1 || experts_.adapter2 || shared_.adapter1 || shared_.adapter2;
  if (adapts && site.adapted_samples.defined()) {
    const std::int64_t positions = x.routed.size(0) / batch;
    const auto of_tokens = ids_of(site, positions, placed(site.jitter, positions)).to(x.routed.device());
    const auto copies = of_tokens.unsqueeze(1).expand({-1, spec_.top_k}).contiguous();
    inner.ids = numbered(inner.routes->copies_to_experts(of_places(copies)).take(), inner.routes->offsets());
    if (x.all.defined()) inner.shared_ids = ids_of(site, x.all.size(0) / batch, site.jitter);
  }
  choose_adapters(inner, x, batch);
  if (!shared_.fc1.empty()) {
    if (shared_gate_) inner.gate = at::sigmoid(wide_product(x.all, shared_gate_)).squeeze(1);
    inner.shared_u =
        first(x.all, shared_, {0, x.all.size(0)}, inner.shared_ids, inner.shared_adapters, activations, inner.shared_y);
  }
  inner.u = first(rows.take(), experts_, inner.routes->offsets(), inner.ids, inner.adapters, activations, inner.y);
  return inner;
}

/// The gradients of weights, now or when they are put off to. Holds what they are products of.
struct ExpertLayer::WeightWork {
  const ExpertLayer layer;
  parallel::RecomputeFunction x_fn;
  at::Tensor dout_part;
  Routes routes;
  at::Tensor du, y, shared_du, shared_y;  ///< y times what the rows count
  at::Tensor ids, shared_ids;

  /// `dz`: nothing where nobody reads it.
  void write(const Rows& x, const Rows& dout, std::optional<Coming> dz) const {
    const Mlps &experts = layer.experts_, &shared = layer.shared_;
    std::optional<Coming> rows;
    if (experts.trains_first()) rows = routes.to_experts(x.routed);
    if (!shared.fc1.empty()) {
      const Offsets all{0, x.all.size(0)};
      shared.write_first(shared_du, x.all, all, shared_ids);
      shared.write_second(dout.all, shared_y, all, shared_ids);
    }
    if (dz) experts.write_second(dz->take(), y, routes.offsets(), ids);
    if (rows) experts.write_first(du, rows->take(), routes.offsets(), ids);
  }
  void operator()() const {
    const Rows dout = layer.rows_of(dout_part), x = layer.rows_of(x_fn());
    std::optional<Coming> dz;  // on its way
    if (layer.experts_.trains_second()) dz = routes.to_experts(dout.routed);
    write(x, dout, std::move(dz));
  }
};

void ExpertLayer::Mlps::write_first(const at::Tensor& dy, const at::Tensor& x, const Offsets& offsets,
                                    const at::Tensor& ids) const {
  if (!fc1.front()->frozen()) write_grouped_gradients(fc1, dy, x, offsets);
  if (adapter1) adapter1->write_gradients(dy, x, offsets, ids);
}

void ExpertLayer::Mlps::write_second(const at::Tensor& dy, const at::Tensor& x, const Offsets& offsets,
                                     const at::Tensor& ids) const {
  if (!fc2.front()->frozen()) write_grouped_gradients(fc2, dy, x, offsets);
  if (adapter2) adapter2->write_gradients(dy, x, offsets, ids);
}

class ExpertLayer::Backward {
 public:
  Backward(const ExpertLayer& layer, parallel::RecomputeFunction x_fn, std::optional<Inner> kept, RouterSite site,
           std::int64_t batch)
      : layer_(layer), x_fn_(std::move(x_fn)), kept_(std::move(kept)), site_(std::move(site)), batch_(batch) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& grads) {
    const auto dout_part = grads[0].contiguous();
    const Rows dout = layer_.rows_of(dout_part), x = layer_.rows_of(x_fn_());
    Inner inner = kept_ ? std::move(*kept_) : layer_.inner(x, batch_, site_, parallel::Value::Unread);
    kept_.reset();
    count(inner);
    const Routes& routes = *inner.routes;
    Coming dz_comes = routes.to_experts(dout.routed),
           weights_come = routes.copies_to_experts(layer_.of_places(layer_.own(inner.weights)));
    const bool has_shared = !layer_.shared_.fc1.empty();
    const Offsets all = has_shared ? Offsets{0, x.all.size(0)} : Offsets();
    kernels::WeightedGradient shared;
    if (has_shared) shared = gradient_of(inner.shared_u, layer_.shared_, dout.all, inner.gate, all, inner.shared_ids);
    const auto dz = dz_comes.take(), weights = weights_come.take();
    auto through = gradient_of(inner.u, layer_.experts_, dz, weights, routes.offsets(), inner.ids);
    inner.u.reset();
    if (!layer_.experts_.bias1.empty()) {
      if (const auto biases = layer_.biases_of_sum(); !biases.empty())
        through.weights = through.weights + products_with(biases, dz, routes.offsets());
      write_bias_gradients(layer_.experts_.bias1, through.du, {}, routes.offsets());
      write_bias_gradients(layer_.experts_.bias2, dz, weights, routes.offsets());
    }
    Coming dx_comes = routes.combined(first_gradient(layer_.experts_, through.du, routes.offsets(), inner.ids), {}),
           dplaces_come = routes.copies_back(through.weights);
    at::Tensor dx_shared;
    if (has_shared) dx_shared = first_gradient(layer_.shared_, shared.du, all, inner.shared_ids);
    const auto dx = dx_comes.take();
    const auto dlogits = router_backward(inner, dplaces_come.take());
    add_wide(dx, dlogits, layer_.router_, x.routed, layer_.jitter(x.routed, batch_, site_));
    if (layer_.router_bias_) write_bias_gradients({layer_.router_bias_}, dlogits, {}, {0, dlogits.size(0)});
    if (layer_.bias_) leave_alone(layer_.bias_);
    if (has_shared) {
      if (!layer_.sends_part()) dx_shared = dx.add_(dx_shared);  // of the same rows
      if (layer_.shared_gate_)
        add_wide(dx_shared, (shared.weights * inner.gate * (1 - inner.gate)).unsqueeze(1), layer_.shared_gate_, x.all);
    }
    if (const ParameterPtr trained = layer_.trained()) {
      const WeightWork work{layer_,    x_fn_,     dout_part, routes,    through.du,
                            through.y, shared.du, shared.y,  inner.ids, inner.shared_ids};
      if (trained->deferring())
        trained->contribute(work);
      else
        work.write(x, dout, Coming([dz] { return dz; }));
    }
    return {layer_.sends_part() ? layer_.joined(dx, dx_shared, batch_) : layer_.summed(dx, batch_)};
  }

 private:
  /// From the gradient of what the second layer gives, before that is multiplied by what the rows count.
  kernels::WeightedGradient gradient_of(const at::Tensor& u, const Mlps& mlps, const at::Tensor& dz,
                                        const at::Tensor& weights, const Offsets& offsets,
                                        const at::Tensor& ids) const {
    const auto dy = kernels::grouped_input_gradient(dz, groups_of(mlps.fc2, offsets));
    if (mlps.adapter2) mlps.adapter2->add_input_gradient(dy, dz, offsets, ids);
    return kernels::weighted_activation_backward(dy, u, weights, layer_.options_.activation, mlps.gated);
  }
  /// The gradient of what the first layer reads, from that of what it gives.
  static at::Tensor first_gradient(const Mlps& mlps, const at::Tensor& du, const Offsets& offsets,
                                   const at::Tensor& ids) {
    const auto dx = kernels::grouped_input_gradient(du, groups_of(mlps.fc1, offsets));
    if (mlps.adapter1) mlps.adapter1->add_input_gradient(dx, du, offsets, ids);
    return dx;
  }

  void count(const Inner& inner) const {
    RouterCounts& counts = layer_.counted_->counts;
    const std::vector<std::int64_t>& routed = inner.routes->loads();
    const bool apart = layer_.apart();  // then those are of a share of the tokens, and each rank of tp counts all
    if (!apart && (layer_.spec_.capacity_factor == 0 || !site_.training)) {
      for (std::size_t e = 0; e < routed.size(); ++e) counts.loads[e] += static_cast<double>(routed[e]);
      return;
    }
    const auto chosen = at::bincount(inner.experts.view({-1}), {}, layer_.spec_.count).cpu();
    for (std::size_t e = 0; e < counts.loads.size(); ++e) {
      const auto load = static_cast<double>(chosen.const_data_ptr<std::int64_t>()[e]);
      counts.loads[e] += load;
      if (!apart) counts.dropped += load - static_cast<double>(routed[e]);
    }
    counts.dropped += inner.dropped;
  }

  /// The choice has no gradient.
  static void leave_alone(const ParameterPtr& bias) {
    if (bias->frozen()) return;
    parallel::Contribution contribution(bias, parallel::Contribution::When::WithTheRest);
    if (contribution.beta() == 0) contribution.target().zero_();
    contribution.written();
  }

  /// The experts that the auxiliary loss counts a token for: those with the best scores, whether or not groups and
  /// biases let it choose them (DeepSeek-AI 2024, section 2.1.2, equation 18).
  at::Tensor best_experts(const Inner& inner) const {
    plan::Router alone = layer_.spec_.router;
    if (alone.aux_loss == 0 || (alone.groups <= 1 && !layer_.bias_)) return inner.experts;
    alone.groups = 1;
    return chosen_experts(inner.logits, alone, layer_.spec_.top_k, {});
  }

  /// The gradient of the logits of the rows that this rank routes, [R, E]: that which comes through what their experts
  /// count, of `dplaces` for each place of a copy, and that of the auxiliary losses. Of ranks of tp that route the same
  /// rows each has a part of the one, and the first has the other.
  at::Tensor router_backward(const Inner& inner, const at::Tensor& dplaces) const {
    const c10::AutoGradMode on(true);
    const plan::Router& router = layer_.spec_.router;
    const bool first = layer_.tp_.rank() == 0;
    parallel::GraphLeaf leaf(inner.logits);
    const auto logits = leaf.take();
    const auto experts = layer_.own(inner.experts);
    const auto dweights = layer_.apart() ? dplaces.unflatten(1, {experts.size(1), -1}).sum(-1) : dplaces;
    auto sum = (expert_weights(layer_.own(logits), experts, router) * dweights).sum();
    const bool losses = router.aux_loss != 0 || router.z_loss != 0;
    if (losses && site_.sequence_weights_b.defined() && (first || layer_.sends_part())) {
      const auto by_sequence = [&](const at::Tensor& x) { return x.view({-1, batch_, x.size(-1)}); };
      const RouterLosses of =
          router_losses(by_sequence(logits), by_sequence(best_experts(inner)), router, site_.sequence);
      const auto each = of.balance * router.aux_loss + of.z * router.z_loss;
      const auto now =
          (at::stack({of.balance, of.z}).detach().to(at::kDouble) * site_.sequence_weights_b).sum(1) / site_.loss_scale;
      if (at::Tensor& counted = layer_.counted_->losses; first) counted = counted.defined() ? counted + now : now;
      sum = sum + (each * site_.sequence_weights_b.to(each.options())).sum();
    }
    parallel::GraphRoot(sum).backward(at::ones_like(sum));
    return layer_.own(leaf.take_gradient()).contiguous();
  }

  /// Back through a product of x, each element of which was multiplied by its factor (undefined: 1).
  static void add_wide(const at::Tensor& dx, const at::Tensor& dy, const ParameterPtr& weight, const at::Tensor& x,
                       const at::Tensor& factors = {}) {
    const auto through = at::mm(dy, weight->arrived().detach().to(dy.scalar_type()));
    dx.add_(factors.defined() ? through * factors : through);
    write_wide_gradient(weight, dy, factors.defined() ? x.to(factors.scalar_type()) * factors : x);
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
    const Rows rows = rows_of(x.detach());
    kept = inner(rows, x.size(1), site, value);
    if (value == parallel::Value::Unread) return at::empty(x.sizes(), x.options());
    const Routes& routes = *kept->routes;
    Coming sum_comes = routes.combined(
        second(std::exchange(kept->y, {}), experts_, routes.offsets(), kept->ids, kept->adapters, biases_of_sum()),
        of_places(own(kept->weights)));
    at::Tensor shared;
    if (!shared_.fc2.empty()) {
      const auto z = second(std::exchange(kept->shared_y, {}), shared_, {0, rows.all.size(0)}, kept->shared_ids,
                            kept->shared_adapters, {});
      shared = kept->gate.defined() ? z * kept->gate.unsqueeze(1).to(z.scalar_type()) : z;
    }
    const auto sum = sum_comes.take();
    if (shared.defined() && !sends_part()) sum.add_(shared);
    return sends_part() ? joined(sum, shared, x.size(1)) : summed(sum, x.size(1));
  });
  if (options_.recompute) kept.reset();
  if (!recompute_fn) recompute_fn = [same = x.detach()] { return same; };
  std::vector<at::Tensor> inputs{x, router_->value};
  for (const Mlps* mlps : {&experts_, &shared_}) {
    for (const auto* weights : {&mlps->fc1, &mlps->fc2, &mlps->bias1, &mlps->bias2})
      for (const ParameterPtr& weight : *weights) inputs.push_back(weight->value);
    for (const ExpertAdaptersPtr& adapter : {mlps->adapter1, mlps->adapter2})
      if (adapter) adapter->append_values(inputs);
  }
  for (const ParameterPtr& other : {router_bias_, bias_, shared_gate_})
    if (other) inputs.push_back(other->value);
  const auto backward = std::make_shared<Backward>(*this, std::move(recompute_fn), std::move(kept), site, x.size(1));
  return parallel::with_backward(inputs, out,
                                 [backward](const std::vector<at::Tensor>& grads) { return (*backward)(grads); });
}

}  // namespace megatron::model
