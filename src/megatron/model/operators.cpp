#include "megatron/model/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/kernels/normalization.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {
namespace {

using parallel::with_backward;
using parallel::without_autograd;
using Gradients = std::vector<at::Tensor>;

at::Tensor value_of(const parallel::ParameterPtr& parameter) {
  return parameter ? parameter->arrived().detach() : at::Tensor();
}

constexpr auto kWithTheRest = parallel::Contribution::When::WithTheRest;

/// What autograd is told that an operator's outputs depend on.
std::vector<at::Tensor> inputs(std::vector<at::Tensor> tensors,
                               std::initializer_list<const parallel::ParameterPtr*> parameters) {
  for (const auto* parameter : parameters)
    if (*parameter) tensors.push_back((*parameter)->value);
  return tensors;
}

/// Whether the stream is wider than the model's parameters (ModelShape::wide_stream), of which this norm has some.
bool is_wide(const at::Tensor& stream, const Norm& norm) {
  return norm.weight && norm.weight->value.scalar_type() != stream.scalar_type();
}

/// A parameter's value in the stream's type, where there is one.
at::Tensor as_stream(const at::Tensor& value, const at::Tensor& stream) {
  return value.defined() ? value.to(stream.scalar_type()) : value;
}

/// Computed in x's type; `y` in that of the norm's parameters.
kernels::NormOutput norm_forward(const at::Tensor& x, const Norm& norm) {
  const at::Tensor factor = as_stream(norm.factor(), x), offset = as_stream(norm.offset(), x);
  auto out = offset.defined() ? kernels::layer_norm(x, factor, offset, norm.epsilon)
                              : kernels::rms_norm(x, factor, norm.epsilon);
  if (is_wide(x, norm)) out.y = out.y.to(norm.weight->value.scalar_type());
  return out;
}

/// The gradients of a norm's own parameters, while they are written.
class NormGradients {
 public:
  /// `x`: what the norm reads.
  NormGradients(const Norm& norm, const at::Tensor& x)
      : weight_(norm.weight, kWithTheRest), bias_(norm.bias, kWithTheRest), wide_(is_wide(x, norm)) {
    if (norm.bias && bias_.beta() != weight_.beta())
      throw std::logic_error(norm.weight->spec.name + " and its bias have not got the same contributions");
    into = {.weight = norm.weight ? weight_.target() : at::empty_like(norm.ones),
            .norm_bias = norm.bias                ? bias_.target()
                         : norm.no_bias.defined() ? at::zeros_like(norm.no_bias)
                                                  : at::Tensor(),
            .bias = {},
            .norm_beta = wide_ ? 0 : weight_.beta()};
    if (!wide_) return;  // else what is written is of x's type, and becomes that of the buffers in written()
    into.weight = at::empty(into.weight.sizes(), x.options());
    if (into.norm_bias.defined()) into.norm_bias = at::empty(into.norm_bias.sizes(), x.options());
  }
  void written() {
    if (!wide_) {
      weight_.written();
      bias_.written();
      return;
    }
    weight_.write(into.weight);
    if (bias_.target().defined()) bias_.write(into.norm_bias);
  }
  kernels::AddNormGradients into;

 private:
  parallel::Contribution weight_, bias_;
  bool wide_;
};

/// What the norm multiplies x by, as its backward pass reads it.
at::Tensor weight_of(const Norm& norm, const at::Tensor& x) {
  if (is_wide(x, norm)) return as_stream(norm.factor(), x);
  return norm.weight && !norm.one_plus ? norm.weight->arrived() : norm.factor();
}

/// Gradient of the stream x before a norm, from those of its two continuations {residual, y}; writes the norm's own.
at::Tensor norm_backward(const Norm& norm, const Gradients& grads, const at::Tensor& x, const at::Tensor& mean,
                         const at::Tensor& rstd) {
  const auto past = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
  const auto dy = grads[1].to(x.scalar_type()).contiguous();
  NormGradients own(norm, x);
  const kernels::AddNormGradients& into = own.into;
  auto dx = into.norm_bias.defined()
                ? kernels::layer_norm_backward(dy, x, mean, rstd, weight_of(norm, x), into.weight, into.norm_bias,
                                               into.norm_beta, past)
                : kernels::rms_norm_backward(dy, x, rstd, weight_of(norm, x), into.weight, into.norm_beta, past);
  own.written();
  return dx;
}

/// norm_backward() where the stream is residual + dropout(x + bias): gradients of x and residual; writes the bias's
/// too.
Gradients add_norm_backward(const Norm& norm, const Gradients& grads, const at::Tensor& sum, const at::Tensor& mean,
                            const at::Tensor& rstd, const parallel::ParameterPtr& bias,
                            const kernels::Dropout& dropout) {
  NormGradients own(norm, sum);
  const bool adds = bias && !bias->frozen();
  // Gradients that take turns in memory are not there at once: the bias is of the layer before the norm's.
  std::optional<parallel::Contribution> added;
  if (adds && !bias->pooled) {
    added.emplace(bias, kWithTheRest);
    own.into.bias = added->target();
    own.into.bias_beta = added->beta();
  } else if (adds) {
    own.into.bias = at::empty(bias->spec.local_shape(), sum.options().dtype(rstd.scalar_type()));
  }
  const auto past = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
  const auto gradients = kernels::bias_dropout_add_norm_backward(grads[1].contiguous(), sum, mean, rstd,
                                                                 weight_of(norm, sum), past, dropout, own.into);
  own.written();
  if (added)
    added->written();
  else if (adds)
    parallel::Contribution(bias, kWithTheRest).write(own.into.bias);
  return {gradients.x, gradients.residual};
}

/// Adds dx, the gradient of what `bias` was added to, to the bias's.
void bias_backward(const parallel::ParameterPtr& bias, const at::Tensor& dx) {
  if (!bias || bias->frozen()) return;
  parallel::Contribution own(bias, kWithTheRest);
  kernels::accumulate_bias_gradient(own.target(), dx, own.beta());
  own.written();
}

/// Gradients of x and residual from that of residual + dropout(x + bias); writes the bias's.
Gradients residual_backward(const at::Tensor& dsum, const parallel::ParameterPtr& bias,
                            const kernels::Dropout& dropout) {
  const auto dx = kernels::dropout_backward(dsum, dropout);
  bias_backward(bias, dx);
  return {dx, dsum};
}

/// residual + dropout(x + bias) in the residual's type, which is wider than x's.
at::Tensor wide_sum(const at::Tensor& x, const parallel::ParameterPtr& bias, const at::Tensor& residual,
                    const kernels::Dropout& dropout) {
  return kernels::bias_dropout_add(x.detach().to(residual.scalar_type()), as_stream(value_of(bias), residual), residual,
                                   dropout);
}

/// residual_backward() of wide_sum(): of x in its own type.
Gradients wide_sum_backward(const at::Tensor& dsum, at::ScalarType of_x, const parallel::ParameterPtr& bias,
                            const kernels::Dropout& dropout) {
  const auto dx = kernels::dropout_backward(dsum, dropout).to(of_x);
  bias_backward(bias, dx);
  return {dx, dsum};
}

/// The pass of a norm that is not there: x as it came.
Normed as_it_is(const at::Tensor& x) {
  return {x, x, [y = x.detach()] { return y; }};
}

parallel::RecomputeFunction recompute_norm(const at::Tensor& x, const Norm& norm) {
  return [x, norm] { return norm_forward(x, norm).y; };
}

}  // namespace

at::Tensor Norm::factor() const {
  if (!weight) return ones;
  const at::Tensor value = weight->arrived().detach();
  return one_plus ? value.add(1) : value;
}

at::Tensor Norm::offset() const { return bias ? bias->arrived().detach() : no_bias; }

Normed normalized(const at::Tensor& x_sbh, const Norm& norm) {
  if (!norm.weight) return as_it_is(x_sbh);
  const auto x = x_sbh.detach();
  const auto out = without_autograd([&] { return norm_forward(x, norm); });
  auto backward = [x, norm, mean = out.mean, rstd = out.rstd](const Gradients& grads) -> Gradients {
    return {norm_backward(norm, grads, x, mean, rstd)};
  };
  const auto outputs =
      with_backward(inputs({x_sbh}, {&norm.weight, &norm.bias}), {x.detach(), out.y}, std::move(backward));
  return {outputs[0], outputs[1], recompute_norm(x, norm)};
}

at::Tensor normalized_parts(const at::Tensor& x, const PartsOf& parts, const std::vector<Norm>& norms) {
  struct Kept {
    at::Tensor part, mean, rstd;
  };
  const auto y = x.detach();
  std::vector<Kept> kept;
  without_autograd([&] {
    const auto views = parts(y);
    for (std::size_t i = 0; i < norms.size(); ++i) {
      const auto part = views[i].clone(at::MemoryFormat::Contiguous);
      const auto out = norm_forward(part, norms[i]);
      views[i].copy_(out.y);
      kept.push_back({part, out.mean, out.rstd});
    }
    return y;
  });
  std::vector<at::Tensor> depends{x};
  for (const Norm& norm : norms) depends = inputs(std::move(depends), {&norm.weight, &norm.bias});
  auto backward = [kept = std::move(kept), parts, norms](const Gradients& grads) -> Gradients {
    const auto dx = grads[0].contiguous();  // attention made it for this operator alone
    const auto views = parts(dx);
    for (std::size_t i = 0; i < norms.size(); ++i)
      views[i].copy_(
          norm_backward(norms[i], {at::Tensor(), views[i].contiguous()}, kept[i].part, kept[i].mean, kept[i].rstd));
    return {dx};
  };
  return with_backward(depends, y, std::move(backward));
}

namespace {

/// Rows [tokens, features] of a part, in float32 or wider.
at::Tensor wide_rows(const at::Tensor& part, std::int64_t tokens) {
  return part.to(part.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).reshape({tokens, -1});
}

/// The sums [tokens] of a and b's products over all ranks, of each of several parts whose copies count once.
std::vector<at::Tensor> sums_over_ranks(std::vector<at::Tensor> sums, const std::vector<DistributedNorm>& norms,
                                        const comm::Group& tp) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i].div_(norms[i].copies);
  if (tp.size() == 1) return sums;
  const auto all = at::stack(sums);
  tp.all_reduce(all);
  return all.unbind();
}

}  // namespace

at::Tensor normalized_full_parts(const at::Tensor& x, const PartsOf& parts, const std::vector<DistributedNorm>& norms,
                                 const comm::Group& tp) {
  struct Kept {
    at::Tensor part, rstd;
  };
  const auto y = x.detach();
  const std::int64_t tokens = x.numel() / x.size(-1);
  std::vector<Kept> kept;
  without_autograd([&] {
    const auto views = parts(y);
    std::vector<at::Tensor> squares;
    for (const at::Tensor& view : views) squares.push_back(wide_rows(view, tokens).square().sum(1));
    squares = sums_over_ranks(std::move(squares), norms, tp);
    for (std::size_t i = 0; i < norms.size(); ++i) {
      const DistributedNorm& one = norms[i];
      const auto part = views[i].clone(at::MemoryFormat::Contiguous);
      const auto rstd = squares[i].div(static_cast<double>(one.features)).add_(one.norm.epsilon).rsqrt();
      const auto rows = wide_rows(part, tokens).mul(rstd.unsqueeze(1)).mul_(one.norm.factor());
      views[i].copy_(rows.view(views[i].sizes()));
      kept.push_back({part, rstd});
    }
    return y;
  });
  std::vector<at::Tensor> depends{x};
  for (const DistributedNorm& one : norms) depends = inputs(std::move(depends), {&one.norm.weight});
  auto backward = [kept = std::move(kept), parts, norms, tp, tokens](const Gradients& grads) -> Gradients {
    const auto dx = grads[0].contiguous();  // attention made it for this operator alone
    const auto views = parts(dx);
    std::vector<at::Tensor> normed, scaled, dots;  // x rstd, dy factor, and their products
    for (std::size_t i = 0; i < norms.size(); ++i) {
      const auto dy = wide_rows(views[i], tokens);
      normed.push_back(wide_rows(kept[i].part, tokens).mul(kept[i].rstd.unsqueeze(1)));
      scaled.push_back(dy.mul(norms[i].norm.factor()));
      dots.push_back(scaled[i].mul(normed[i]).sum(1).mul_(norms[i].copies));
      parallel::Contribution weight(norms[i].norm.weight, kWithTheRest);
      const auto own = dy.mul(normed[i]).sum(0);
      weight.target().copy_(weight.beta() == 0 ? own : own.add(weight.target()));
      weight.written();
    }
    dots = sums_over_ranks(std::move(dots), norms, tp);
    for (std::size_t i = 0; i < norms.size(); ++i) {
      // Each copy has a part of the gradient: what is subtracted once is subtracted in parts.
      const double share = 1.0 / (static_cast<double>(norms[i].features) * norms[i].copies);
      const auto rows = scaled[i].sub(normed[i].mul(dots[i].unsqueeze(1)), share).mul_(kept[i].rstd.unsqueeze(1));
      views[i].copy_(rows.view(views[i].sizes()));
    }
    return {dx};
  };
  return with_backward(depends, y, std::move(backward));
}

at::Tensor add_bias(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias) {
  const auto sum = without_autograd([&] { return x_sbh.detach().add_(value_of(bias)); });
  return with_backward(inputs({x_sbh}, {&bias}), sum, [bias](const Gradients& grads) -> Gradients {
    const auto dx = grads[0].contiguous();
    bias_backward(bias, dx);
    return {dx};
  });
}

Normed add_norm(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias, const at::Tensor& residual_sbh,
                const kernels::Dropout& dropout, const Norm& norm) {
  if (!norm.weight) return as_it_is(add_residual(x_sbh, bias, residual_sbh, dropout));
  if (x_sbh.scalar_type() != residual_sbh.scalar_type())
    return normalized(add_residual(x_sbh, bias, residual_sbh, dropout), norm);
  const auto out = without_autograd([&] {
    const auto x = x_sbh.detach(), added = value_of(bias), weight = norm.factor(), offset = norm.offset();
    return offset.defined()
               ? kernels::bias_dropout_add_norm(x, added, residual_sbh, dropout, weight, offset, norm.epsilon)
               : kernels::bias_dropout_add_rms_norm(x, added, residual_sbh, dropout, weight, norm.epsilon);
  });
  const auto sum = out.sum.detach();
  auto backward = [sum, bias, dropout, norm, mean = out.mean, rstd = out.rstd](const Gradients& grads) -> Gradients {
    return add_norm_backward(norm, grads, sum, mean, rstd, bias, dropout);
  };
  const auto outputs = with_backward(inputs({x_sbh, residual_sbh}, {&bias, &norm.weight, &norm.bias}), {out.sum, out.y},
                                     std::move(backward));
  return {outputs[0], outputs[1], recompute_norm(sum, norm)};
}

at::Tensor add_residual(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias, const at::Tensor& residual_sbh,
                        const kernels::Dropout& dropout, parallel::Value value) {
  const auto sum = without_autograd([&] {
    if (value == parallel::Value::Unread) return x_sbh.detach().to(residual_sbh.scalar_type());
    if (x_sbh.scalar_type() != residual_sbh.scalar_type()) return wide_sum(x_sbh, bias, residual_sbh, dropout);
    return kernels::bias_dropout_add(x_sbh.detach(), value_of(bias), residual_sbh, dropout);
  });
  auto backward = [bias, dropout, of_x = x_sbh.scalar_type()](const Gradients& grads) -> Gradients {
    const auto dsum = grads[0].contiguous();
    return of_x == dsum.scalar_type() ? residual_backward(dsum, bias, dropout)
                                      : wide_sum_backward(dsum, of_x, bias, dropout);
  };
  return with_backward(inputs({x_sbh, residual_sbh}, {&bias}), sum, std::move(backward));
}

at::Tensor bias_activation(const at::Tensor& x_sbf, const parallel::ParameterPtr& bias, kernels::Activation form) {
  const auto u = x_sbf.detach();
  const auto y = without_autograd([&] { return kernels::bias_activation(u, value_of(bias), form); });
  return with_backward(inputs({x_sbf}, {&bias}), y, [u, bias, form](const Gradients& grads) -> Gradients {
    const auto dx = kernels::activation_backward(grads[0].contiguous(), u, form);
    bias_backward(bias, dx);
    return {dx};
  });
}

Ungated without_gates(const at::Tensor& x, std::int64_t groups, std::int64_t queries) {
  const std::int64_t s = x.size(0), b = x.size(1), all = x.size(2) / groups;
  const auto rows = x.detach().view({s, b, groups, all});
  const auto parts = without_autograd([&] {
    return std::vector<at::Tensor>{
        at::cat({rows.narrow(3, 0, queries), rows.narrow(3, 2 * queries, all - 2 * queries)}, 3).view({s, b, -1}),
        rows.narrow(3, queries, queries).contiguous().view({s, b, -1})};
  });
  auto backward = [s, b, groups, queries](const Gradients& grads) -> Gradients {
    const auto qkv = grads[0].reshape({s, b, groups, -1}), gates = grads[1].reshape({s, b, groups, -1});
    return {
        at::cat({qkv.narrow(3, 0, queries), gates, qkv.narrow(3, queries, qkv.size(3) - queries)}, 3).view({s, b, -1})};
  };
  const auto outputs = with_backward({x}, parts, std::move(backward));
  return {outputs[0], outputs[1]};
}

Recomputable gated(const at::Tensor& x, const at::Tensor& gates) {
  const auto kept = x.detach(), by = gates.detach();
  const auto factor = [by] { return at::sigmoid(by.to(by.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)); };
  const auto product = [kept, factor] { return kept.mul(factor()).to(kept.scalar_type()); };
  auto backward = [kept, factor](const Gradients& grads) -> Gradients {
    const auto f = factor();
    const auto dy = grads[0].to(f.scalar_type());
    return {dy.mul(f).to(kept.scalar_type()), dy.mul(kept).mul_(f.mul(1 - f)).to(kept.scalar_type())};
  };
  return {with_backward({x, gates}, parallel::without_autograd(product), std::move(backward)), product};
}

at::Tensor dropout(const at::Tensor& x_sbh, const kernels::Dropout& options) {
  if (options.p == 0) return x_sbh;
  // The mask times the gradient is the mask times the value: one kernel is both directions.
  const auto y = without_autograd([&] { return kernels::dropout_backward(x_sbh.detach(), options); });
  return with_backward({x_sbh}, y, [options](const Gradients& grads) -> Gradients {
    return {kernels::dropout_backward(grads[0].contiguous(), options)};
  });
}

}  // namespace megatron::model
