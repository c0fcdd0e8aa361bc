#include "megatron/model/block.h"

#include <utility>

namespace megatron::model {
namespace {

using parallel::ColumnParallelLinear;
using parallel::RowParallelLinear;

/// `prefix`bias, or null.
parallel::ParameterPtr bias_of(const parallel::ParameterStore& p, const std::string& prefix, bool has_bias) {
  return has_bias ? p.get(prefix + "bias") : nullptr;
}

ColumnParallelLinear column(const parallel::ParameterStore& p, const std::string& prefix, const comm::Group& tp,
                            bool has_bias, bool skip_bias_add, bool sequence_parallel) {
  return {p.get(prefix + "weight"),
          bias_of(p, prefix, has_bias),
          tp,
          {.gather_output = false, .skip_bias_add = skip_bias_add, .sequence_parallel = sequence_parallel}};
}

RowParallelLinear row(const parallel::ParameterStore& p, const std::string& prefix, const comm::Group& tp,
                      bool has_bias, bool sequence_parallel) {
  return {p.get(prefix + "weight"),
          bias_of(p, prefix, has_bias),
          tp,
          {.input_is_parallel = true, .skip_bias_add = true, .sequence_parallel = sequence_parallel}};
}

/// What a dropout leaves of a value.
Remakeable dropped(Remakeable x, const kernels::Dropout& options) {
  if (options.p == 0) return x;
  return {dropout(x.y, options),
          [remake = std::move(x.remake), options] { return dropout(remake().detach(), options); }};
}

}  // namespace

Norm norm_of(const parallel::ParameterStore& parameters, const std::string& prefix, double epsilon, bool rms) {
  return {parameters.get(prefix + "weight"), bias_of(parameters, prefix, !rms), epsilon};
}

Block::Block(const parallel::ParameterStore& parameters, const std::string& prefix, const Options& options,
             const comm::Group& tp)
    : input_norm_(norm_of(parameters, prefix + "input_layernorm.", options.epsilon, options.rms_norm)),
      mlp_norm_(norm_of(parameters, prefix + "pre_mlp_layernorm.", options.epsilon, options.rms_norm)),
      qkv_(column(parameters, prefix + "self_attention.linear_qkv.", tp, options.qkv_bias, false,
                  options.sequence_parallel)),
      fc1_(column(parameters, prefix + "mlp.linear_fc1.", tp, options.linear_bias, true, options.sequence_parallel)),
      proj_(
          row(parameters, prefix + "self_attention.linear_proj.", tp, options.linear_bias, options.sequence_parallel)),
      fc2_(row(parameters, prefix + "mlp.linear_fc2.", tp, options.linear_bias, options.sequence_parallel)),
      options_(options) {
  if (!options.cross_attention) return;
  const std::string cross = prefix + "cross_attention.";
  const bool bias = options.linear_bias, split = options.sequence_parallel;
  cross_.emplace(
      Cross{.norm = norm_of(parameters, prefix + "pre_cross_attn_layernorm.", options.epsilon, options.rms_norm),
            .q = column(parameters, cross + "linear_q.", tp, bias, false, split),
            .kv = column(parameters, cross + "linear_kv.", tp, bias, false, split),
            .proj = row(parameters, cross + "linear_proj.", tp, bias, split)});
}

Normed Block::across(Normed in, const Memory& memory, const kernels::Dropout& dropout) const {
  const at::Tensor q = cross_->q.forward(in.y, std::move(in.remake));
  const at::Tensor kv = memory.states.defined() ? cross_->kv.forward(memory.states) : at::Tensor();
  auto [y, remake] = memory.attend(q, kv);
  const at::Tensor x = cross_->proj.forward(y, std::move(remake));
  return add_norm(x, cross_->proj.bias(), residual_of(in), dropout, mlp_norm_);
}

Normed Block::forward(Normed in, const Attend& attend, const Sites& dropout, const Norm* next, parallel::Value value,
                      const Memory* memory) const {
  // Each tensor is let go of as soon as the next is made: what backward needs, the operators hold.
  at::Tensor x;
  {
    auto [y, remake] = attend(qkv_.forward(in.y, std::move(in.remake)));
    x = proj_.forward(y, std::move(remake));
  }
  // Where attention gave the last rows alone, the others end here.
  at::Tensor carried = residual_of(in);
  const std::int64_t ended = carried.size(0) - x.size(0);
  if (ended > 0) carried = carried.narrow(0, ended, x.size(0));
  in = add_norm(x, proj_.bias(), carried, dropout.attention_output, cross_ ? cross_->norm : mlp_norm_);
  if (cross_) in = across(std::move(in), *memory, dropout.cross_output);
  carried = residual_of(in);
  parallel::Remake again;
  if (options_.recompute_mlp) again = [fc1 = fc1_, norm = in.remake] { return fc1.forward(norm()); };
  x = fc1_.forward(in.y, std::move(in.remake));
  {
    auto [y, remake] = dropped(bias_activation(x, fc1_.bias(), options_.activation, again), dropout.mlp_inner);
    x = fc2_.forward(y, options_.keep_activation ? parallel::Remake() : std::move(remake), value);
  }
  if (next == nullptr) return {add_residual(x, fc2_.bias(), carried, dropout.mlp_output, value), {}, {}};
  return add_norm(x, fc2_.bias(), carried, dropout.mlp_output, *next);
}

}  // namespace megatron::model
