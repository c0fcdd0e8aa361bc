#include "megatron/kernels/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

/// x with each |x| rounded to one of its neighbours in `dtype` (bf16 or fp16): up where the part cut off, in units of
/// the last place, plus the upper 16 bits of the element's word (as a fraction) reaches 1.
at::Tensor round_stochastically(const at::Tensor& x, at::ScalarType dtype, const Update& o, Stored stored) {
  const auto longs = x.options().dtype(at::kLong);
  const at::Tensor i = at::arange(x.numel(), longs), run = i.div(o.numbers.run, "floor");
  const at::Tensor number = run * (o.numbers.stride - o.numbers.run) + i + o.numbers.first;
  const at::Tensor sample = at::full({1}, static_cast<std::int64_t>(rounding_sample(o.step, stored)), longs);
  const at::Tensor fraction = random_words(o.numbers.key, sample, number).__rshift__(16).to(at::kDouble) * 0x1p-16;
  const bool brain = dtype == at::kBFloat16;
  const at::Tensor exact = x.to(at::kDouble), size = exact.abs();
  const at::Tensor exponent = std::get<1>(at::frexp(size)) - (brain ? 8 : 11);  // of the last place
  const at::Tensor unit = at::pow(2.0, exponent.clamp_min(brain ? -133 : -24).to(at::kDouble));
  const at::Tensor rounded = at::copysign((size / unit + fraction).floor() * unit, exact);
  return at::where(size.isfinite(), rounded, exact).to(dtype);
}

/// target = value, rounded as `o` says where target is of 16 bits; as it is where the update is left out.
void store(const at::Tensor& target, const at::Tensor& value, const Update& o, Stored stored) {
  const at::ScalarType type = target.scalar_type();
  const bool rounds = type == at::kBFloat16 || type == at::kHalf;
  const at::Tensor now = rounds && o.stochastic_rounding ? round_stochastically(value, type, o, stored) : value;
  target.copy_(o.factor.defined() ? at::where(o.factor.isnan(), target, now.to(type)) : now);
}

/// The gradient that the update follows, in the precision of `param`.
at::Tensor scaled_gradient(const at::Tensor& param, const at::Tensor& grad, const Update& o) {
  const at::Tensor wide = grad.to(compute_type(param)), g = o.factor.defined() ? wide * o.factor : wide * o.grad_scale;
  return o.decoupled || o.weight_decay == 0 ? g : g + up(param) * o.weight_decay;
}

/// param = param * decay - direction, and the copy that the model computes with.
void move_parameter(const at::Tensor& param, const at::Tensor& model, const at::Tensor& direction, const Update& o) {
  const double decay = o.decoupled ? 1 - o.learning_rate * o.weight_decay : 1;
  const at::Tensor moved = up(param) * decay - direction;
  store(param, moved, o, Stored::Parameter);
  if (model.defined()) store(model, moved, o, Stored::Parameter);
}

}  // namespace

void adam_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const Adam& adam, const Update& o) {
  const double correction1 = 1 - std::pow(adam.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(adam.beta2, static_cast<double>(o.step));
  const at::Tensor g = scaled_gradient(param, grad, o);
  const at::Tensor m = exp_avg.to(g.scalar_type()) * adam.beta1 + g * (1 - adam.beta1);
  const at::Tensor v = exp_avg_sq.to(g.scalar_type()) * adam.beta2 + g * g * (1 - adam.beta2);
  store(exp_avg, m, o, Stored::FirstMoment);
  store(exp_avg_sq, v, o, Stored::SecondMoment);
  const at::Tensor denominator = v.sqrt() * (1 / std::sqrt(correction2)) + adam.eps;
  move_parameter(param, model, m / denominator * (o.learning_rate / correction1), o);
}

void sgd_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& momentum_buffer,
          double momentum, const Update& o) {
  at::Tensor direction = scaled_gradient(param, grad, o);
  if (momentum_buffer.defined()) {
    direction = momentum_buffer.to(direction.scalar_type()) * momentum + direction;
    store(momentum_buffer, direction, o, Stored::FirstMoment);
  }
  move_parameter(param, model, direction * o.learning_rate, o);
}

void lion_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const Lion& lion, const Update& o) {
  const at::Tensor g = scaled_gradient(param, grad, o), m = exp_avg.to(g.scalar_type());
  const at::Tensor direction = (m * lion.beta1 + g * (1 - lion.beta1)).sign();
  store(exp_avg, m * lion.beta2 + g * (1 - lion.beta2), o, Stored::FirstMoment);  // m may be exp_avg itself
  move_parameter(param, model, direction * o.learning_rate, o);
}

void round_(const at::Tensor& model, const at::Tensor& param, const Update& o) {
  store(model, param, o, Stored::Parameter);
}

at::Tensor sum_of_squares(at::TensorList parts) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;  // bounds the float64 copy
  at::Tensor all = at::zeros({}, parts.front().options().dtype(at::kDouble));
  for (const at::Tensor& part : parts) {
    const at::Tensor x = part.reshape({-1});
    at::Tensor sum = at::zeros_like(all);
    for (std::int64_t at = 0; at < x.numel(); at += kBlock)
      sum += x.narrow(0, at, std::min(kBlock, x.numel() - at)).to(at::kDouble).square().sum();
    all += sum;
  }
  return all;
}

at::Tensor max_abs(at::TensorList parts) {
  at::Tensor all = at::zeros({}, parts.front().options().dtype(at::kDouble));
  for (const at::Tensor& x : parts)
    if (x.numel() > 0) all = at::maximum(all, x.abs().max().to(at::kDouble));
  return all;
}

}  // namespace megatron::kernels::reference
