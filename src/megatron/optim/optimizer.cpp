#include "megatron/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "megatron/base/philox.h"

namespace megatron::optim {

Optimizer::Optimizer(const parallel::ParameterStore& parameters, std::vector<plan::Shard> owned,
                     const config::OptimizerConfig& optimizer, OptimizerOptions options)
    : parameters_(parameters),
      owned_(std::move(owned)),
      name_(optimizer.name),
      kinds_(config::state_names(optimizer)),
      rule_(make_rule(optimizer)),
      options_(std::move(options)) {
  const config::OptimizerInfo& info = config::optimizer_info(name_);
  uniform_ = info.state(optimizer, true) == info.state(optimizer, false);
  sizes_.assign(kinds_.size(), uniform_ ? plan::total_size(owned_) : 0);
  for (std::size_t i = 0; rule_->takes_matrices() && i < parameters.all().size(); ++i)
    if (parameters.all()[i]->spec.is_layer_matrix()) matrices_.push_back({i, {}});
  for (const plan::Shard& shard : owned_)
    for (const plan::ParameterRange& range : shard.parameters) {
      keep_state(shard, range, info, optimizer);
      add_runs(shard, range);
    }
  const at::TensorOptions values = parameters.options();
  const bool half = parallel::Precision::is_half(parameters.dtype());
  const auto flat = [&](std::int64_t size, at::ScalarType type) { return at::zeros({size}, values.dtype(type)); };
  const at::ScalarType precise = half ? at::kFloat : parameters.dtype();
  if (half) masters_ = flat(plan::total_size(owned_), precise);
  for (const std::int64_t size : sizes_) state_.push_back(flat(size, options_.bf16_state ? at::kBFloat16 : precise));
  if (!half) return;
  for (const plan::Shard& shard : owned_)
    for (const plan::ParameterRange& range : shard.parameters) {
      const auto drawn = parameters.first_values(static_cast<std::size_t>(range.parameter)).view({-1});
      masters_.narrow(0, shard.state + range.local.begin, range.local.size())
          .copy_(drawn.narrow(0, range.param.begin, range.param.size()));
    }
}

void Optimizer::keep_state(const plan::Shard& shard, const plan::ParameterRange& range,
                           const config::OptimizerInfo& info, const config::OptimizerConfig& optimizer) {
  const auto& spec = parameters_.all().at(static_cast<std::size_t>(range.parameter))->spec;
  for (const std::string& name : info.state(optimizer, spec.is_layer_matrix())) {
    const auto kind = static_cast<std::size_t>(std::ranges::find(kinds_, name) - kinds_.begin());
    std::int64_t begin = shard.state + range.local.begin;
    if (!uniform_) begin = std::exchange(sizes_[kind], sizes_[kind] + range.param.size());
    kept_.push_back({kind, range.parameter, range.param.begin, begin, range.param.size()});
  }
}

void Optimizer::add_runs(const plan::Shard& shard, const plan::ParameterRange& range) {
  const auto index = static_cast<std::size_t>(range.parameter);
  const auto& spec = parameters_.all().at(index)->spec;
  const plan::Multipliers multipliers = options_.multipliers.empty()
                                            ? plan::Multipliers{1, spec.weight_decay ? 1.0 : 0.0}
                                            : options_.multipliers.at(index);
  const auto matrix = std::ranges::find(matrices_, index, &Matrix::parameter);
  std::vector<UniformRange>& runs = matrix == matrices_.end() ? runs_ : matrix->runs;
  /// Of the range's elements from number `begin` of the slice on.
  const auto state_of = [&](std::int64_t begin) {
    std::vector<std::pair<std::size_t, std::int64_t>> state;
    for (auto kept = kept_.rbegin(); kept != kept_.rend() && kept->parameter == range.parameter; ++kept)
      if (kept->param_begin == range.param.begin)
        state.emplace_back(kept->kind, kept->begin + begin - range.param.begin);
    std::ranges::sort(state);
    return state;
  };
  if (options_.stochastic_rounding) {
    const std::uint64_t key = stream_key(options_.seed, "rounding/" + spec.name);
    for (const plan::NumberedRange& part : plan::numbered_ranges(spec, range.param)) {
      const plan::Range world = part.param.shifted(range.world.begin - range.param.begin);
      runs.push_back({world,
                      shard.state + world.begin - shard.world.begin,
                      multipliers,
                      {.key = key, .first = part.first, .run = part.run, .stride = part.stride},
                      state_of(part.param.begin),
                      part.param.begin});
    }
    return;
  }
  const std::int64_t own = shard.state + range.local.begin;
  const bool same_shard = !runs.empty() && runs.back().world.begin >= shard.world.begin;
  const bool mergeable = uniform_ && matrix == matrices_.end();
  if (mergeable && same_shard && runs.back().multipliers == multipliers)
    runs.back().world.end = range.world.end;
  else
    runs.push_back({range.world, own, multipliers, {}, state_of(range.param.begin), range.param.begin});
}

at::Tensor Optimizer::weights_of(const plan::Range& world, std::int64_t own) const {
  return masters_.defined() ? masters_.narrow(0, own, world.size()) : parameters_.owned_values(world);
}

UpdateRule::Views Optimizer::views_of(const UniformRange& run) const {
  const auto size = run.world.size();
  UpdateRule::Views views{.weight = weights_of(run.world, run.own),
                          .model = masters_.defined() ? parameters_.owned_values(run.world) : at::Tensor(),
                          .gradient = parameters_.summed_gradients(run.world),
                          .state = {}};
  for (const auto& [kind, begin] : run.state) views.state.push_back(state_[kind].narrow(0, begin, size));
  return views;
}

kernels::Update Optimizer::update_of(const UniformRange& run, const plan::LearningRates& rates,
                                     const GradScale& grad_scale) const {
  return {.learning_rate = (run.multipliers.words ? rates.words : rates.usual) * run.multipliers.learning_rate,
          .weight_decay = rates.weight_decay.value_or(options_.weight_decay) * run.multipliers.weight_decay,
          .eps_factor = run.multipliers.eps,
          .grad_scale = grad_scale.number,
          .factor = grad_scale.factor,
          .step = steps_,
          .decoupled = options_.decoupled,
          .stochastic_rounding = options_.stochastic_rounding,
          .numbers = run.numbers};
}

void Optimizer::step(const plan::LearningRates& rates, const GradScale& grad_scale) {
  ++steps_;
  for (const UniformRange& run : runs_) rule_->apply(views_of(run), update_of(run, rates, grad_scale));
  for (const Matrix& matrix : matrices_) step_matrix(matrix, rates, grad_scale);
}

void Optimizer::shift(const std::map<std::string, std::vector<double>>& changes) const {
  if (changes.empty()) return;
  for (const plan::Shard& shard : owned_)
    for (const plan::ParameterRange& range : shard.parameters) {
      const auto change = changes.find(parameters_.all()[static_cast<std::size_t>(range.parameter)]->spec.name);
      if (change == changes.end()) continue;
      const at::Tensor weights = weights_of(range.world, shard.state + range.local.begin);
      const at::Tensor all = at::tensor(change->second, at::kDouble);
      weights.add_(all.narrow(0, range.param.begin, range.param.size()).to(weights.options()));
    }
}

at::Tensor Optimizer::whole_direction(const Matrix& matrix, const GradScale& grad_scale) const {
  const plan::ParameterSpec& spec = parameters_.all()[matrix.parameter]->spec;
  at::TensorOptions options = parameters_.options();
  if (masters_.defined()) options = options.dtype(at::kFloat);
  const at::Tensor slice = at::zeros({spec.local_size()}, options);
  for (const UniformRange& run : matrix.runs)
    slice.narrow(0, run.in_slice, run.world.size())
        .copy_(rule_->direction(views_of(run), update_of(run, 0.0, grad_scale)));
  (spec.of_expert ? options_.expert_owners : options_.owners)
      .all_reduce(slice);  // others have zeros where this rank has numbers: exact in any order
  if (spec.pieces.empty()) return slice.view(spec.shape);
  at::Tensor whole = at::zeros(spec.shape, options);
  std::int64_t begin = 0;
  for (const plan::ShardSlice& piece : spec.pieces) {
    if (piece.copy == 0)
      whole.narrow(spec.split_dim, piece.offset, piece.length)
          .copy_(slice.view(spec.local_shape()).narrow(spec.split_dim, begin, piece.length));
    begin += piece.length;
  }
  (spec.of_expert ? options_.expert_slices : options_.slices).all_reduce(whole);
  return whole;
}

void Optimizer::step_matrix(const Matrix& matrix, const plan::LearningRates& rates, const GradScale& grad_scale) const {
  const plan::ParameterSpec& spec = parameters_.all()[matrix.parameter]->spec;
  const at::Tensor direction = whole_direction(matrix, grad_scale), change = at::empty_like(direction);
  for (const plan::MatrixRows& rows : options_.matrices.at(matrix.parameter)) {
    std::vector<at::Tensor> parts;
    for (const plan::Range& range : rows) parts.push_back(direction.narrow(0, range.begin, range.size()));
    const at::Tensor update = rule_->matrix_update(parts.size() == 1 ? parts[0] : at::cat(parts));
    std::int64_t begin = 0;
    for (const plan::Range& range : rows) {
      change.narrow(0, range.begin, range.size()).copy_(update.narrow(0, begin, range.size()));
      begin += range.size();
    }
  }
  std::vector<at::Tensor> pieces;
  for (const plan::ShardSlice& piece : spec.pieces)
    pieces.push_back(change.narrow(spec.split_dim, piece.offset, piece.length));
  // What multiplies a change is 1, or NaN with the factor.
  const GradScale scale = grad_scale.factor.defined() ? GradScale(grad_scale.factor * 0 + 1) : GradScale(1.0);
  const at::Tensor slice = (pieces.empty() ? change : at::cat(pieces, spec.split_dim)).contiguous().view({-1});
  for (const UniformRange& run : matrix.runs) {
    const UpdateRule::Views views = views_of(run);
    kernels::Update update = update_of(run, rates, scale);
    update.decoupled = true;  // a change that is no gradient has no decay added to it
    kernels::sgd_(views.weight, views.model, slice.narrow(0, run.in_slice, run.world.size()), {}, 0, update);
  }
}

bool Optimizer::round_masters() {
  if (!options_.stochastic_rounding || !masters_.defined() || steps_ == 0) return false;
  const auto round = [&](const std::vector<UniformRange>& runs) {
    for (const UniformRange& run : runs)
      kernels::round_(parameters_.owned_values(run.world), masters_.narrow(0, run.own, run.world.size()),
                      {.step = steps_, .stochastic_rounding = true, .numbers = run.numbers});
  };
  round(runs_);
  for (const Matrix& matrix : matrices_) round(matrix.runs);
  return true;
}

std::vector<StateSlice> Optimizer::state() const {
  std::vector<StateSlice> slices;
  for (const plan::Shard& shard : owned_)
    for (const plan::ParameterRange& range : shard.parameters)
      slices.push_back({.kind = "",
                        .parameter = static_cast<std::size_t>(range.parameter),
                        .begin = range.param.begin,
                        .flat = weights_of(range.world, shard.state + range.local.begin)});
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind)
    for (const Kept& kept : kept_)
      if (kept.kind == kind)
        slices.push_back({.kind = kinds_[kind],
                          .parameter = static_cast<std::size_t>(kept.parameter),
                          .begin = kept.param_begin,
                          .flat = state_[kind].narrow(0, kept.begin, kept.size)});
  return slices;
}

std::int64_t Optimizer::bytes() const {
  std::int64_t bytes = masters_.defined() ? static_cast<std::int64_t>(masters_.nbytes()) : 0;
  for (const at::Tensor& state : state_) bytes += static_cast<std::int64_t>(state.nbytes());
  return bytes;
}

}  // namespace megatron::optim
