#include "megatron/parallel/fp8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "megatron/kernels/matmul.h"

namespace megatron::parallel {
namespace {

using plan::Fp8Operand;

/// What numbers are scaled in, so that only the 8-bit number is rounded: fp16 has too few exponents.
at::ScalarType scaled_type(const at::Tensor& x) { return x.scalar_type() == at::kHalf ? at::kFloat : x.scalar_type(); }

at::ScalarType scalar_type_of(plan::Fp8Type type) {
  return type == plan::Fp8Type::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

std::int64_t row_count(const at::Tensor& x) { return x.numel() / x.size(-1); }

/// Whether the matrix units of the device compute the products of x [.., k] and w [n, k]: they want multiples of 16.
bool has_units(const at::Tensor& x, const at::Tensor& w) {
  return x.is_cuda() && x.scalar_type() != at::kDouble && row_count(x) % 16 == 0 && w.size(0) % 16 == 0 &&
         w.size(1) % 16 == 0;
}

/// x, whose columns lie one after the other.
at::Tensor by_columns(const at::Tensor& x) { return x.t().contiguous().t(); }

}  // namespace

at::Tensor fp8_quantized(const at::Tensor& x, plan::Fp8Type type, double scale) {
  const double most = plan::largest_of(type);
  return x.detach().to(scaled_type(x)).mul(scale).clamp_(-most, most).to(scalar_type_of(type));
}

at::Tensor fp8_rounded(const at::Tensor& x, plan::Fp8Type type, double scale) {
  return fp8_quantized(x, type, scale).to(scaled_type(x)).mul_(1 / scale).to(x.scalar_type());
}

Fp8Scaling::Fp8Scaling(const plan::Fp8Recipe& recipe, const std::vector<std::string>& layers, at::Device device)
    : recipe_(recipe), weight_seen_(layers.size(), false) {
  const auto count = static_cast<std::int64_t>(layers.size());
  for (std::int64_t i = 0; i < count; ++i) numbers_.emplace(layers[static_cast<std::size_t>(i)], i);
  const auto on_device = at::TensorOptions().dtype(at::kFloat).device(device);
  scales_ = at::ones({count, plan::kFp8Operands}, at::kFloat);
  history_ = at::zeros({recipe.history, count, plan::kFp8Operands}, at::kFloat);
  inverses_ = at::ones({count, plan::kFp8Operands}, on_device);
  magnitudes_ = at::zeros({count, plan::kFp8Operands}, on_device);
}

std::int64_t Fp8Scaling::number_of(const std::string& layer) const {
  const auto found = numbers_.find(layer);
  if (found == numbers_.end()) throw std::out_of_range("no layer that computes in fp8 is named " + layer);
  return found->second;
}

double Fp8Scaling::scale(std::int64_t layer, Fp8Operand operand) const {
  return scales_.const_data_ptr<float>()[layer * plan::kFp8Operands + static_cast<std::int64_t>(operand)];
}

at::Tensor Fp8Scaling::inverse_scale(std::int64_t layer, Fp8Operand operand) const {
  return inverses_.select(0, layer).select(0, static_cast<std::int64_t>(operand));
}

void Fp8Scaling::see(std::int64_t layer, Fp8Operand operand, const at::Tensor& x) {
  if (x.numel() == 0) return;
  if (operand == Fp8Operand::Weight) {
    if (weight_seen_[static_cast<std::size_t>(layer)]) return;
    weight_seen_[static_cast<std::size_t>(layer)] = true;
  }
  const auto [low, high] = at::aminmax(x.detach());
  const at::Tensor largest = at::maximum(high, low.neg()).to(at::kFloat);  // NaN where x has one
  const at::Tensor seen = magnitudes_.select(0, layer).select(0, static_cast<std::int64_t>(operand));
  seen.copy_(at::maximum(seen, largest));
}

void Fp8Scaling::forget_magnitudes() {
  magnitudes_.zero_();
  std::fill(weight_seen_.begin(), weight_seen_.end(), false);
}

at::Tensor Fp8Scaling::magnitudes() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return magnitudes_.nan_to_num(kInfinity, kInfinity);  // a maximum over ranks may lose a NaN
}

void Fp8Scaling::update(const at::Tensor& magnitudes) {
  if (magnitudes.sizes() != scales_.sizes())
    throw std::invalid_argument("Fp8Scaling::update: a number for each operand of each layer");
  auto* const first = history_.mutable_data_ptr<float>();
  std::copy_backward(first, first + history_.numel() - magnitudes.numel(), first + history_.numel());
  history_.select(0, 0).copy_(magnitudes);
  compute_scales();
}

void Fp8Scaling::compute_scales() {
  const std::int64_t each = scales_.numel();
  const auto* const history = history_.const_data_ptr<float>();
  auto* const scales = scales_.mutable_data_ptr<float>();
  const std::int64_t steps = recipe_.largest_of_history ? recipe_.history : 1;
  for (std::int64_t i = 0; i < each; ++i) {
    float amax = 0;
    for (std::int64_t step = 0; step < steps; ++step) amax = std::max(amax, history[step * each + i]);
    const auto operand = static_cast<Fp8Operand>(i % plan::kFp8Operands);
    scales[i] = static_cast<float>(
        plan::fp8_scale(amax, recipe_.type(operand), recipe_.margin, static_cast<double>(scales[i])));
  }
  inverses_.copy_(scales_.reciprocal());
}

void Fp8Scaling::restored() {
  compute_scales();
  forget_magnitudes();
}

void Fp8Scaling::reset() {
  scales_.fill_(1);
  history_.zero_();
  restored();
}

std::int64_t Fp8Scaling::bytes() const {
  return static_cast<std::int64_t>(scales_.nbytes() + history_.nbytes() + inverses_.nbytes() + magnitudes_.nbytes());
}

at::Tensor Fp8Products::quantized(const at::Tensor& x, Fp8Operand operand) const {
  return fp8_quantized(x.reshape({-1, x.size(-1)}), scaling_->recipe().type(operand), scaling_->scale(layer_, operand));
}

at::Tensor Fp8Products::rounded(const at::Tensor& x, Fp8Operand operand) const {
  return fp8_rounded(x, scaling_->recipe().type(operand), scaling_->scale(layer_, operand));
}

// Sums are those of Transformer Engine's products: fast ones forward, full ones backward.

at::Tensor Fp8Products::output(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const {
  scaling_->see(layer_, Fp8Operand::Input, x);
  scaling_->see(layer_, Fp8Operand::Weight, w);
  if (!has_units(x, w))
    return kernels::linear(rounded(x, Fp8Operand::Input), rounded(w, Fp8Operand::Weight), nullptr, bias);
  auto shape = x.sizes().vec();
  shape.back() = w.size(0);
  at::Tensor y = at::_scaled_mm(quantized(x, Fp8Operand::Input), quantized(w, Fp8Operand::Weight).t(),
                                inverse(Fp8Operand::Input), inverse(Fp8Operand::Weight), {}, {}, x.scalar_type(),
                                /*use_fast_accum=*/true)
                     .view(shape);
  return bias.defined() ? y.add_(bias) : y;
}

at::Tensor Fp8Products::input_gradient(const at::Tensor& dy, const at::Tensor& w) const {
  if (!has_units(dy, w))
    return kernels::linear_input_gradient(rounded(dy, Fp8Operand::OutputGradient), rounded(w, Fp8Operand::Weight));
  auto shape = dy.sizes().vec();
  shape.back() = w.size(1);
  return at::_scaled_mm(quantized(dy, Fp8Operand::OutputGradient), by_columns(quantized(w, Fp8Operand::Weight)),
                        inverse(Fp8Operand::OutputGradient), inverse(Fp8Operand::Weight), {}, {}, dy.scalar_type())
      .view(shape);
}

void Fp8Products::weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x,
                                  double beta) const {
  if (!scaling_->recipe().weight_gradients) return kernels::linear_weight_gradient(grad_w, dy, x, beta);
  if (!has_units(x, grad_w))
    return kernels::linear_weight_gradient(grad_w, rounded(dy, Fp8Operand::OutputGradient),
                                           rounded(x, Fp8Operand::Input), beta);
  const at::Tensor product = at::_scaled_mm(
      quantized(dy, Fp8Operand::OutputGradient).t().contiguous(), by_columns(quantized(x, Fp8Operand::Input)),
      inverse(Fp8Operand::OutputGradient), inverse(Fp8Operand::Input), {}, {}, at::kFloat);
  if (beta == 0)
    grad_w.copy_(product);
  else
    grad_w.mul_(beta).add_(product);
}

}  // namespace megatron::parallel
