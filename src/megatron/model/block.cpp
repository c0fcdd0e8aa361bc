#include "megatron/model/block.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/model/attention.h"
#include "megatron/model/latent_attention.h"
#include "megatron/model/layer_walk.h"
#include "megatron/model/recomputed_once.h"
#include "megatron/parallel/fp8.h"

namespace megatron::model {
namespace {

using parallel::ColumnParallelLinear;
using parallel::RowParallelLinear;

/// `prefix`bias, or null.
parallel::ParameterPtr bias_of(const parallel::ParameterStore& p, const std::string& prefix, bool has_bias) {
  return has_bias ? p.get(prefix + "bias") : nullptr;
}

/// The adapters of those parts of a linear layer that have one; null: none has. `find`: a parameter by its name, null
/// where a part that `lora` may adapt has none.
template <class Find>
parallel::AdapterPtr adapter_of(const Find& find, const plan::Lora& lora, const plan::LayerSpec& layer,
                                const plan::Linear& linear, const Block::Options& options, const comm::Group& tp) {
  std::vector<parallel::Adapter::Part> parts;
  for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, tp.size())) {
    if (!lora.adapts(part.name)) continue;
    const parallel::ParameterPtr a = find(plan::adapter_name(layer, linear, part, "A"));
    if (!a) continue;
    const parallel::ParameterPtr b = find(plan::adapter_name(layer, linear, part, "B")),
                                 m = lora.dora ? find(plan::magnitude_name(layer, linear, part)) : nullptr;
    if (!b || (lora.dora && !m))  // of a folder that changed while it was read
      throw std::runtime_error(concat("an adapter of ", layer.prefix, linear.name, " has an A and not the rest of it"));
    parts.push_back(
        {part, a, b, stream_key(options.seed, concat("dropout/", layer.prefix, linear.name, ".", part.name)), m});
  }
  if (parts.empty()) return nullptr;
  const bool row = linear.split == plan::Linear::Split::Inputs;
  return std::make_shared<const parallel::Adapter>(std::move(parts), lora.scale(), lora.dropout, linear.inputs,
                                                   row ? linear.inputs / tp.size() * tp.rank() : 0, options.sequence);
}

/// Those among the parameters, which are trained.
parallel::AdapterPtr adapter_of(const parallel::ParameterStore& p, const plan::LayerSpec& layer,
                                const plan::Linear& linear, const Block::Options& options, const comm::Group& tp) {
  if (!options.lora) return nullptr;
  return adapter_of([&](const std::string& name) { return p.get(name); }, *options.lora, layer, linear, options, tp);
}

/// Those that are kept beside `weight` for the sequences that ask for them; null: none is of this layer.
parallel::KeptAdaptersPtr kept_of(const parallel::ParameterPtr& weight, const plan::LayerSpec& layer,
                                  const plan::Linear& linear, const Block::Options& options, const comm::Group& tp) {
  if (!options.kept) return nullptr;
  std::vector<parallel::AdapterPtr> adapters;
  for (const StageAdapters::One& one : options.kept->all) {
    const auto find = [&](const std::string& name) { return one.find(name); };
    adapters.push_back(adapter_of(find, one.lora, layer, linear, options, tp));
  }
  if (std::ranges::none_of(adapters, [](const auto& adapter) { return adapter != nullptr; })) return nullptr;
  const bool row = linear.split == plan::Linear::Split::Inputs;
  return std::make_shared<const parallel::KeptAdapters>(std::move(adapters), options.kept->choice, weight,
                                                        row ? tp : comm::Group());
}

/// Those of the layer's experts.
void keep_of_experts(ExpertLayer& experts, const plan::LayerSpec& layer, const StageAdapters& kept) {
  std::vector<ExpertLayer::Kept> all;
  for (const StageAdapters::One& one : kept.all)
    all.push_back({one.lora, [&](const std::string& name) { return one.find(name); }});
  experts.keep(all, layer, kept.choice);
}

/// Of a linear layer in 8 bits; null: it computes in the model's type.
parallel::Fp8ProductsPtr fp8_of(const plan::LayerSpec& layer, const plan::Linear& linear, const Block::Options& options,
                                const comm::Group& tp) {
  if (!options.fp8 || layer.wide) return nullptr;
  const parallel::Fp8Holders holders{.split = linear.split, .slices = tp, .sequence = options.sequence_ranks};
  return std::make_shared<const parallel::Fp8Products>(options.fp8, layer.prefix + linear.name, holders);
}

ColumnParallelLinear column(const parallel::ParameterStore& p, const std::string& prefix, const plan::Linear& linear,
                            const comm::Group& tp, bool sequence_parallel) {
  return {p.get(prefix + linear.name + ".weight"),
          bias_of(p, prefix + linear.name + ".", linear.bias),
          tp,
          {.gather_output = false, .skip_bias_add = false, .sequence_parallel = sequence_parallel}};
}

RowParallelLinear row(const parallel::ParameterStore& p, const std::string& prefix, const plan::Linear& linear,
                      const comm::Group& tp, bool sequence_parallel) {
  return {p.get(prefix + linear.name + ".weight"),
          bias_of(p, prefix + linear.name + ".", linear.bias),
          tp,
          {.input_is_parallel = true, .skip_bias_add = true, .sequence_parallel = sequence_parallel}};
}

void set_sinks(BranchModules& branch, const plan::SelfAttention& attention, const parallel::ParameterStore& parameters,
               const std::string& prefix) {
  if (attention.learned_sinks()) branch.sinks = parameters.get(prefix + plan::SelfAttention::kSinks);
  if (!attention.zero_sinks()) return;
  const bool wide = parameters.dtype() == at::kDouble;
  branch.zero_sinks = at::zeros({branch.heads}, parameters.options().dtype(wide ? at::kDouble : at::kFloat));
}

void set_heads(BranchModules& branch, const plan::SelfAttention& attention, int tp) {
  branch.heads = attention.heads / tp;
  branch.groups = std::max<std::int64_t>(attention.groups / tp, 1);
  branch.head_size = attention.head_size;
}
void set_heads(BranchModules& branch, const plan::CrossAttention& attention, int tp) {
  branch.heads = branch.groups = attention.heads / tp;
  branch.head_size = attention.head_size;
}
void set_heads(BranchModules& /*branch*/, const plan::Mlp& /*mlp*/, int /*tp*/) {}
void set_heads(BranchModules& /*branch*/, const plan::Experts& /*experts*/, int /*tp*/) {}

BranchModules branch_of(const parallel::ParameterStore& parameters, const plan::LayerSpec& layer, std::size_t index,
                        const Block::Options& options, const comm::Group& tp) {
  const plan::Branch& spec = layer.branches[index];
  const bool split = options.sequence_parallel;
  const auto norm = [&](const std::string& name) {
    return norm_of(parameters, layer.prefix + name + ".", {options.epsilon, layer});
  };
  if (const auto* experts = std::get_if<plan::Experts>(&spec.inner)) {
    BranchModules branch{.spec = spec,
                         .norm = norm(spec.norm()),
                         .in = {},
                         .out = {nullptr, nullptr, tp},
                         .experts = ExpertLayer(parameters, layer.prefix, *experts,
                                                {.activation = options.activation,
                                                 .sequence_parallel = split,
                                                 .recompute = options.recompute_mlp,
                                                 .slices = options.expert_slices},
                                                tp, options.experts)};
    if (options.lora)
      branch.experts->adapt([&](const std::string& name) { return parameters.get(name); }, layer, *options.lora,
                            options.seed);
    if (options.kept) keep_of_experts(*branch.experts, layer, *options.kept);
    return branch;
  }
  const std::vector<plan::Linear> linears = spec.linears(layer.hidden);
  BranchModules branch{.spec = spec,
                       .norm = layer.norm_before(index) ? norm(spec.norm()) : Norm{},
                       .in = {},
                       .out = row(parameters, layer.prefix, linears.back(), tp, split)};
  branch.out.adapt(adapter_of(parameters, layer, linears.back(), options, tp));
  branch.out.keep(kept_of(branch.out.weight(), layer, linears.back(), options, tp));
  branch.out.compute_in(fp8_of(layer, linears.back(), options, tp));
  const auto* const attention = std::get_if<plan::SelfAttention>(&spec.inner);
  const bool latents = attention != nullptr && attention->latents;  // which sees to what ranks exchange for it
  for (std::size_t i = 0; i + 1 < linears.size(); ++i) {
    branch.in.push_back(
        column(parameters, layer.prefix, linears[i], latents ? comm::Group() : tp, latents ? false : split));
    branch.in.back().adapt(adapter_of(parameters, layer, linears[i], options, tp));
    branch.in.back().keep(kept_of(branch.in.back().weight(), layer, linears[i], options, tp));
    branch.in.back().compute_in(fp8_of(layer, linears[i], options, tp));
    for (const std::string& name : linears[i].head_norms) branch.head_norms.push_back(norm(name));
    if (linears[i].plain_norms) {
      Norm plain{nullptr, nullptr, options.epsilon};
      plain.ones = at::ones({linears[i].head_size}, parameters.options());
      branch.head_norms.assign(2, plain);
    }
  }
  if (layer.norms.behind) branch.out_norm = norm(spec.out_norm());
  std::visit([&](const auto& inner) { set_heads(branch, inner, tp.size()); }, spec.inner);
  if (attention != nullptr) set_sinks(branch, *attention, parameters, layer.prefix);
  return branch;
}

/// The steps of a layer on all rows of a sequence, recorded for backward where autograd is on. Each tensor is released
/// as soon as the next is made: what backward needs, the operators hold.
class RowSteps {
 public:
  RowSteps(const Block& block, Normed in, const Attend& attend, const Block::Sites& sites, parallel::Value value,
           const EncoderOutput* encoder_output, bool partial)
      : block_(block),
        stream_(std::move(in)),
        attend_(attend),
        sites_(sites),
        value_(value),
        encoder_output_(encoder_output),
        recomputes_mlp_(block.options().recompute_mlp && !partial) {}

  void project(const ColumnParallelLinear& linear) {
    x_ = linear.forward(stream_.y, norm_again(), sites_.adapted_samples);
  }
  void normalize_heads(const BranchModules& branch) { x_ = normalized_queries_and_keys(x_, branch, block_.tp()); }
  void take_gates(const BranchModules& branch) {
    Ungated parts = without_gates(x_, branch.groups, branch.heads / branch.groups * branch.head_size);
    x_ = std::move(parts.qkv);
    gates_ = std::move(parts.gates);
  }
  void attend(const plan::SelfAttention& /*attention*/, const BranchModules& /*branch*/) { take(attend_.heads(x_)); }
  /// An attention that gave the last rows alone has the gates of these.
  void gate() {
    const at::Tensor gates = std::exchange(gates_, {});
    const std::int64_t ended = gates.size(0) - x_.size(0);
    take(gated(x_, ended > 0 ? gates.narrow(0, ended, x_.size(0)) : gates));
  }
  void attend_latents(const plan::SelfAttention& /*attention*/, const BranchModules& branch) {
    const at::Tensor& samples = sites_.adapted_samples;
    const LatentInput in =
        compressed(stream_.y, norm_again(), branch, block_.tp(), block_.options().sequence_parallel, samples);
    take(attend_.latents ? attend_.latents(in)
                         : without_padding(attend_.heads(joined_heads(in, branch, samples)), branch));
  }
  void attend_across(const plan::CrossAttention& /*attention*/, const BranchModules& branch) {
    const at::Tensor& states = encoder_output_->states;
    take(encoder_output_->attend(
        x_, states.defined() ? branch.in.back().forward(states, {}, sites_.adapted_samples) : at::Tensor()));
  }
  void expand(const plan::Mlp& mlp, const BranchModules& branch) {
    const ColumnParallelLinear& fc1 = branch.in.front();
    inner_ = {.form = block_.options().activation, .gated = mlp.gated, .dropout = sites_.mlp_inner};
    if (recomputes_mlp_) {
      const auto both = std::make_shared<RecomputedOnce<parallel::Activated>>(
          [fc1, inner = inner_, norm = stream_.recompute_fn, samples = sites_.adapted_samples] {
            return fc1.forward(norm(), inner, {}, samples);
          });
      again_ = {[both] { return std::move(both->value().u); }, [both] { return std::move(both->value().y); }};
    }
    activated_ = fc1.forward(stream_.y, inner_, norm_again(), sites_.adapted_samples);
    if (block_.options().keep_activation && !recomputes_mlp_) again_.y_fn = [y = activated_->y] { return y; };
  }
  void route(const plan::Experts& /*experts*/, const BranchModules& /*branch*/) {}  // leave() computes them at once
  void leave(const BranchModules& branch, std::size_t index, const Norm* next) {
    const parallel::Value value = next == nullptr ? value_ : parallel::Value::Needed;
    const parallel::Value given = branch.out_norm ? parallel::Value::Needed : value;
    if (branch.experts) {
      x_ = branch.experts->forward(stream_.y, std::move(stream_.recompute_fn), sites_.router, given);
    } else if (activated_) {
      x_ = branch.out.forward(*activated_, inner_, std::exchange(again_, {}), given, sites_.adapted_samples);
      activated_.reset();
    } else {
      x_ = branch.out.forward(x_, std::move(recompute_fn_), given, sites_.adapted_samples);
    }
    parallel::ParameterPtr bias = branch.out.bias();
    if (branch.out_norm) {
      x_ = normalized(bias ? add_bias(x_, bias) : x_, *branch.out_norm).y;
      bias = nullptr;
    }
    at::Tensor carried = block_.residual_after_norm(index) ? stream_.y : stream_.residual;
    // Where attention gave the last rows alone, the others end here.
    const std::int64_t ended = carried.size(0) - x_.size(0);
    if (ended > 0) carried = carried.narrow(0, ended, x_.size(0));
    const kernels::Dropout dropout = sites_.outputs.empty() ? kernels::Dropout() : sites_.outputs.at(index);
    if (block_.reads_same_stream(index)) {
      const at::Tensor sum = add_residual(x_, bias, carried, dropout);
      if (!block_.shares_norm(index)) stream_ = normalized(carried, *next);
      stream_.residual = sum;
    } else {
      stream_ = next == nullptr ? Normed{add_residual(x_, bias, carried, dropout, value), {}, {}}
                                : add_norm(x_, bias, carried, dropout, *next);
    }
    x_ = at::Tensor();
  }
  Normed take_stream() { return std::move(stream_); }

 private:
  /// What the branch reads, again: the next one may read the same.
  parallel::RecomputeFunction norm_again() { return stream_.recompute_fn; }
  void take(Recomputable made) {
    x_ = std::move(made.y);
    recompute_fn_ = std::move(made.recompute_fn);
  }

  const Block& block_;
  Normed stream_;
  const Attend& attend_;
  const Block::Sites& sites_;
  parallel::Value value_;
  const EncoderOutput* encoder_output_;
  bool recomputes_mlp_;
  at::Tensor x_;
  at::Tensor gates_;  ///< of an attention under way
  parallel::RecomputeFunction recompute_fn_;
  std::optional<parallel::Activated> activated_;  ///< of an MLP, in place of x_
  parallel::InnerActivation inner_;
  parallel::ActivatedAgain again_;
};

}  // namespace

Norm norm_of(const parallel::ParameterStore& parameters, const std::string& prefix, const NormKind& kind) {
  Norm norm{parameters.get(prefix + "weight"), bias_of(parameters, prefix, !kind.rms && kind.bias), kind.epsilon,
            kind.one_plus};
  if (!kind.rms && !kind.bias)
    norm.no_bias = at::zeros(norm.weight->spec.local_shape(), parameters.options().dtype(parameters.dtype()));
  return norm;
}

at::Tensor normalized_queries_and_keys(const at::Tensor& qkv, const BranchModules& branch, const comm::Group& tp) {
  const auto& attention = std::get<plan::SelfAttention>(branch.spec.inner);
  if (!attention.variant.qk_layernorm_full)
    return normalized_heads(qkv, branch.groups, branch.head_size, branch.head_norms);
  const auto parts = [groups = branch.groups, size = branch.head_size](const at::Tensor& x) -> std::vector<at::Tensor> {
    const Heads heads = heads_of(x, groups, size);
    return {heads.q, heads.k};
  };
  const int copies = static_cast<int>(std::max<std::int64_t>(1, tp.size() / attention.groups));
  return normalized_full_parts(qkv, parts,
                               {{.norm = branch.head_norms[0], .features = attention.query_rows()},
                                {.norm = branch.head_norms[1], .features = attention.key_rows(), .copies = copies}},
                               tp);
}

Block::Block(const parallel::ParameterStore& parameters, const plan::LayerSpec& layer, const Options& options,
             const comm::Group& tp)
    : options_(options),
      tp_(tp),
      residual_after_norm_(layer.residual_after_norm),
      first_after_norm_(layer.first_after_norm),
      parallel_(layer.parallel) {
  for (std::size_t i = 0; i < layer.branches.size(); ++i)
    branches_.push_back(branch_of(parameters, layer, i, options, tp));
}

at::Tensor Block::cross_keys_and_values(const at::Tensor& states) const {
  for (const BranchModules& branch : branches_)
    if (std::holds_alternative<plan::CrossAttention>(branch.spec.inner)) return branch.in.back().forward(states);
  throw std::logic_error("a layer without cross attention has no keys and values of the encoder");
}

Normed Block::forward(Normed in, const Attend& attend, const Sites& dropout, const Norm* next, parallel::Value value,
                      const EncoderOutput* encoder_output, bool partial) const {
  RowSteps steps(*this, std::move(in), attend, dropout, value, encoder_output, partial);
  walk(*this, next, steps);
  return steps.take_stream();
}

}  // namespace megatron::model
