#include "megatron/optim/optimizer.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "megatron/base/philox.h"

namespace megatron::optim {

Optimizer::Optimizer(const parallel::ParameterStore& parameters, std::vector<plan::Shard> owned,
                     const config::OptimizerConfig& optimizer, OptimizerOptions options)
    : parameters_(parameters),
      owned_(std::move(owned)),
      name_(optimizer.name),
      kinds_(config::optimizer_info(name_).state(optimizer)),
      rule_(make_rule(optimizer)),
      options_(std::move(options)) {
  const auto& values = parameters.values();
  const bool half = parallel::Precision::is_half(values.scalar_type());
  const auto flat = [&](at::ScalarType type) {
    return at::zeros({plan::total_size(owned_)}, values.options().dtype(type));
  };
  const at::ScalarType precise = half ? at::kFloat : values.scalar_type();
  if (half) masters_ = flat(precise);
  for (std::size_t i = 0; i < kinds_.size(); ++i) state_.push_back(flat(options_.bf16_state ? at::kBFloat16 : precise));
  for (const plan::Shard& shard : owned_)
    for (const plan::ParameterRange& range : shard.parameters) add_runs(shard, range);
  if (!half) return;
  for (const plan::Shard& shard : owned_)
    for (const plan::ParameterRange& range : shard.parameters) {
      const auto drawn = parameters.first_values(static_cast<std::size_t>(range.parameter)).view({-1});
      masters_.narrow(0, shard.state + range.local.begin, range.local.size())
          .copy_(drawn.narrow(0, range.param.begin, range.param.size()));
    }
}

void Optimizer::add_runs(const plan::Shard& shard, const plan::ParameterRange& range) {
  const auto index = static_cast<std::size_t>(range.parameter);
  const auto& spec = parameters_.all().at(index)->spec;
  const plan::Multipliers multipliers = options_.multipliers.empty()
                                            ? plan::Multipliers{1, spec.weight_decay ? 1.0 : 0.0}
                                            : options_.multipliers.at(index);
  if (options_.stochastic_rounding) {
    const std::uint64_t key = stream_key(options_.seed, "rounding/" + spec.name);
    for (const plan::NumberedRange& part : plan::numbered_ranges(spec, range.param)) {
      const plan::Range world = part.param.shifted(range.world.begin - range.param.begin);
      runs_.push_back({world,
                       shard.state + world.begin - shard.world.begin,
                       multipliers,
                       {.key = key, .first = part.first, .run = part.run, .stride = part.stride}});
    }
    return;
  }
  const std::int64_t own = shard.state + range.local.begin;
  const bool same_shard = !runs_.empty() && runs_.back().world.begin >= shard.world.begin;
  if (same_shard && runs_.back().multipliers == multipliers)
    runs_.back().world.end = range.world.end;
  else
    runs_.push_back({range.world, own, multipliers, {}});
}

at::Tensor Optimizer::weights_of(const plan::Range& world, std::int64_t own) const {
  return masters_.defined() ? masters_.narrow(0, own, world.size())
                            : parameters_.values().narrow(0, world.begin, world.size());
}

void Optimizer::step(double learning_rate, double grad_scale) {
  ++steps_;
  for (const Run& run : runs_) {
    const auto here = [&](const at::Tensor& buffer) { return buffer.narrow(0, run.world.begin, run.world.size()); };
    UpdateRule::Views views{.weight = weights_of(run.world, run.own),
                            .model = masters_.defined() ? here(parameters_.values()) : at::Tensor(),
                            .gradient = parameters_.summed_gradients(run.world),
                            .state = {}};
    for (const at::Tensor& state : state_) views.state.push_back(state.narrow(0, run.own, run.world.size()));
    rule_->apply(views, {.learning_rate = learning_rate * run.multipliers.learning_rate,
                         .weight_decay = options_.weight_decay * run.multipliers.weight_decay,
                         .grad_scale = grad_scale,
                         .step = steps_,
                         .decoupled = options_.decoupled,
                         .stochastic_rounding = options_.stochastic_rounding,
                         .numbers = run.numbers});
  }
}

bool Optimizer::round_masters() {
  if (!options_.stochastic_rounding || !masters_.defined() || steps_ == 0) return false;
  for (const Run& run : runs_)
    kernels::round_(parameters_.values().narrow(0, run.world.begin, run.world.size()),
                    masters_.narrow(0, run.own, run.world.size()),
                    {.step = steps_, .stochastic_rounding = true, .numbers = run.numbers});
  return true;
}

std::vector<StateSlice> Optimizer::state() const {
  std::vector<StateSlice> slices;
  const auto add = [&](const std::string& kind, const at::Tensor& buffer) {
    for (const plan::Shard& shard : owned_)
      for (const plan::ParameterRange& range : shard.parameters) {
        const std::int64_t own = shard.state + range.local.begin;
        slices.push_back(
            {.kind = kind,
             .parameter = static_cast<std::size_t>(range.parameter),
             .begin = range.param.begin,
             .flat = buffer.defined() ? buffer.narrow(0, own, range.local.size()) : weights_of(range.world, own)});
      }
  };
  add("", masters_);
  for (std::size_t i = 0; i < kinds_.size(); ++i) add(kinds_[i], state_[i]);
  return slices;
}

std::int64_t Optimizer::bytes() const {
  std::int64_t bytes = masters_.defined() ? static_cast<std::int64_t>(masters_.nbytes()) : 0;
  for (const at::Tensor& state : state_) bytes += static_cast<std::int64_t>(state.nbytes());
  return bytes;
}

}  // namespace megatron::optim
