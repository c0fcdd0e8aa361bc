#include "megatron/model/block.h"

#include <utility>

namespace megatron::model {
namespace {

using parallel::ColumnParallelLinear;
using parallel::RowParallelLinear;

ColumnParallelLinear column(const parallel::ParameterStore& p, const std::string& prefix, const comm::Group& tp,
                            bool skip_bias_add) {
  return {
      p.get(prefix + "weight"), p.get(prefix + "bias"), tp, {.gather_output = false, .skip_bias_add = skip_bias_add}};
}

RowParallelLinear row(const parallel::ParameterStore& p, const std::string& prefix, const comm::Group& tp) {
  return {p.get(prefix + "weight"), p.get(prefix + "bias"), tp, {.input_is_parallel = true, .skip_bias_add = true}};
}

}  // namespace

Norm norm_of(const parallel::ParameterStore& parameters, const std::string& prefix, double epsilon) {
  return {parameters.get(prefix + "weight"), parameters.get(prefix + "bias"), epsilon};
}

Block::Block(const parallel::ParameterStore& parameters, const std::string& prefix, double epsilon, kernels::Gelu gelu,
             bool recompute_gelu, const comm::Group& tp)
    : input_norm_(norm_of(parameters, prefix + "input_layernorm.", epsilon)),
      mlp_norm_(norm_of(parameters, prefix + "pre_mlp_layernorm.", epsilon)),
      qkv_(column(parameters, prefix + "self_attention.linear_qkv.", tp, false)),
      fc1_(column(parameters, prefix + "mlp.linear_fc1.", tp, true)),
      proj_(row(parameters, prefix + "self_attention.linear_proj.", tp)),
      fc2_(row(parameters, prefix + "mlp.linear_fc2.", tp)),
      gelu_(gelu),
      recompute_gelu_(recompute_gelu) {}

Normed Block::forward(Normed in, const Attend& attend, const Sites& dropout, const Norm& next) const {
  // Each tensor is let go of as soon as the next is made: what backward needs, the operators hold.
  auto x = proj_.forward(attend(qkv_.forward(in.y, std::move(in.remake))));
  in = add_norm(x, proj_.bias(), in.residual, dropout.attention_output, mlp_norm_);
  x = fc1_.forward(in.y, std::move(in.remake));
  auto [y, remake] = bias_gelu(x, fc1_.bias(), gelu_);
  x = fc2_.forward(y, recompute_gelu_ ? std::move(remake) : parallel::Remake());
  return add_norm(x, fc2_.bias(), in.residual, dropout.mlp_output, next);
}

}  // namespace megatron::model
