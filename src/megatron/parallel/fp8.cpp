#include "megatron/parallel/fp8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "megatron/kernels/matmul.h"

namespace megatron::parallel {
namespace {

using plan::Fp8Operand;
using Along = Fp8Tile::Along;

/// What numbers are scaled in, so that only the 8-bit number is rounded, and what units write of blocks, too: fp16 has
/// too few exponents.
at::ScalarType scaled_type(at::ScalarType type) { return type == at::kHalf ? at::kFloat : type; }

/// A scale, so that what it multiplies stays of `type`: a scalar changes no type.
at::Tensor of_type(const at::Tensor& scale, at::ScalarType type) { return scale.dim() == 0 ? scale : scale.to(type); }

at::ScalarType scalar_type_of(plan::Fp8Type type) {
  return type == plan::Fp8Type::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

std::int64_t row_count(const at::Tensor& x) { return x.numel() / x.size(-1); }

/// Whether the matrix units of the device compute the products of x [.., k] and w [n, k]: they want multiples of 16,
/// and of features whole blocks.
bool has_units(const at::Tensor& x, const at::Tensor& w, const plan::Fp8Recipe& recipe) {
  const std::int64_t unit = recipe.in_blocks() ? recipe.block() : 16;
  return x.is_cuda() && x.scalar_type() != at::kDouble && row_count(x) % 16 == 0 && w.size(0) % unit == 0 &&
         w.size(1) % unit == 0;
}

/// grad_w (= or +=, by beta) product.
void add_to_gradient(const at::Tensor& grad_w, const at::Tensor& product, double beta) {
  if (beta == 0)
    grad_w.copy_(product);
  else
    grad_w.mul_(beta).add_(product);
}

/// The largest magnitude in x: a float32 scalar, NaN where x has one, 0 where x is empty.
at::Tensor largest_in(const at::Tensor& x) {
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kFloat));
  const auto [low, high] = at::aminmax(x.detach());
  return at::maximum(high, low.neg()).to(at::kFloat);
}

}  // namespace

// With x = m 2^e, 1 <= m < 2, and the largest numbers 1.75 2^8 and 1.75 2^15, the scale is 2 to the power 8 or 15 less
// e, and one less where m is above 1.75: then adding a quarter less the last place carries into float32's exponent.
Fp8Scale fp8_scale_of(const at::Tensor& amax, plan::Fp8Type type) {
  constexpr std::int64_t kMantissaBits = 23, kBias = 127, kMost = 126, kCarry = (1 << (kMantissaBits - 2)) - 1;
  const at::Tensor above = amax.view(at::kInt).add(kCarry).bitwise_right_shift(kMantissaBits);
  const at::Tensor exponent = at::rsub(above, 2 * kBias + std::ilogb(plan::largest_of(type)));
  const at::Tensor bits = exponent.clamp_(kBias - kMost, kBias + kMost).bitwise_left_shift(kMantissaBits);
  const at::Tensor scale = bits.view(at::kFloat);
  return {scale, scale.reciprocal()};
}

at::Tensor fp8_quantized(const at::Tensor& x, plan::Fp8Type type, const Fp8Scale& scale) {
  const double most = plan::largest_of(type);
  const at::ScalarType wide = scaled_type(x.scalar_type());
  return x.detach().to(wide).mul(of_type(scale.scale, wide)).clamp_(-most, most).to(scalar_type_of(type));
}

at::Tensor fp8_divided(const at::Tensor& numbers, const Fp8Scale& scale, at::ScalarType dtype) {
  const at::ScalarType wide = scaled_type(dtype);
  return numbers.to(wide).mul_(of_type(scale.inverse, wide)).to(dtype);
}

at::Tensor fp8_rounded(const at::Tensor& x, plan::Fp8Type type, const Fp8Scale& scale) {
  return fp8_divided(fp8_quantized(x, type, scale), scale, x.scalar_type());
}

Fp8Scaling::Fp8Scaling(const plan::Fp8Recipe& recipe, const std::vector<std::string>& layers, at::Device device)
    : recipe_(recipe),
      weight_seen_(layers.size(), false),
      weight_scales_(recipe.scales == plan::Fp8Scales::Tensor ? layers.size() : 0) {
  const auto count = static_cast<std::int64_t>(layers.size());
  for (std::int64_t i = 0; i < count; ++i) numbers_.emplace(layers[static_cast<std::size_t>(i)], i);
  if (count > 0) first_layer_ = layers.front();
  if (!keeps_magnitudes()) return;
  const auto on_device = at::TensorOptions().dtype(at::kFloat).device(device);
  magnitudes_ = at::zeros({count, plan::kFp8Operands}, on_device);
  if (!recipe.delayed()) return;
  scales_ = at::ones({count, plan::kFp8Operands}, at::kFloat);
  history_ = at::zeros({recipe.history, count, plan::kFp8Operands}, at::kFloat);
  inverses_ = at::ones({count, plan::kFp8Operands}, on_device);
}

std::int64_t Fp8Scaling::number_of(const std::string& layer) const {
  const auto found = numbers_.find(layer);
  if (found == numbers_.end()) throw std::out_of_range("no layer that computes in fp8 is named " + layer);
  return found->second;
}

double Fp8Scaling::scale(std::int64_t layer, Fp8Operand operand) const {
  return scales_.const_data_ptr<float>()[layer * plan::kFp8Operands + static_cast<std::int64_t>(operand)];
}

Fp8Scale Fp8Scaling::delayed_scale(std::int64_t layer, Fp8Operand operand) const {
  return {at::scalar_tensor(scale(layer, operand), at::kFloat),
          inverses_.select(0, layer).select(0, static_cast<std::int64_t>(operand))};
}

void Fp8Scaling::see(std::int64_t layer, Fp8Operand operand, const at::Tensor& x) {
  if (x.numel() == 0) return;
  if (operand == Fp8Operand::Weight) {
    if (weight_seen_[static_cast<std::size_t>(layer)]) return;
    weight_seen_[static_cast<std::size_t>(layer)] = true;
  }
  note(layer, operand, largest_in(x));
}

void Fp8Scaling::note(std::int64_t layer, Fp8Operand operand, const at::Tensor& largest) {
  const at::Tensor seen = magnitudes_.select(0, layer).select(0, static_cast<std::int64_t>(operand));
  seen.copy_(at::maximum(seen, largest));
}

Fp8Scale Fp8Scaling::current_scale(std::int64_t layer, Fp8Operand operand, const at::Tensor& x,
                                   std::span<const comm::Group> holders) {
  const bool is_weight = operand == Fp8Operand::Weight;
  if (is_weight && weight_scales_.at(static_cast<std::size_t>(layer)).scale.defined())
    return weight_scales_[static_cast<std::size_t>(layer)];
  const at::Tensor largest = largest_in(x);
  note(layer, operand, largest);  // before a maximum over ranks, which may lose a NaN
  for (const comm::Group& group : holders) group.all_reduce(largest, comm::ReduceOp::Max);
  const Fp8Scale scale = fp8_scale_of(largest, recipe_.type(operand));
  if (is_weight) weight_scales_[static_cast<std::size_t>(layer)] = scale;
  return scale;
}

void Fp8Scaling::forget_magnitudes() {
  if (!keeps_magnitudes()) return;
  magnitudes_.zero_();
  std::fill(weight_seen_.begin(), weight_seen_.end(), false);
  std::fill(weight_scales_.begin(), weight_scales_.end(), Fp8Scale{});
}

at::Tensor Fp8Scaling::magnitudes() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return magnitudes_.nan_to_num(kInfinity, kInfinity);  // a maximum over ranks may lose a NaN
}

void Fp8Scaling::update(const at::Tensor& magnitudes) {
  if (magnitudes.sizes() != magnitudes_.sizes())
    throw std::invalid_argument("Fp8Scaling::update: a number for each operand of each layer");
  if (!recipe_.delayed()) return forget_magnitudes();
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
  if (!recipe_.delayed()) return forget_magnitudes();
  scales_.fill_(1);
  history_.zero_();
  restored();
}

std::int64_t Fp8Scaling::bytes() const {
  if (!keeps_magnitudes()) return 0;
  if (!recipe_.delayed()) return static_cast<std::int64_t>(magnitudes_.nbytes()) + layers() * 2 * std::int64_t{4};
  return static_cast<std::int64_t>(scales_.nbytes() + history_.nbytes() + inverses_.nbytes() + magnitudes_.nbytes());
}

Fp8Products::Fp8Products(std::shared_ptr<Fp8Scaling> scaling, const std::string& layer, const Fp8Holders& holders)
    : scaling_(std::move(scaling)), layer_(scaling_->number_of(layer)) {
  const Fp8Operand in_slices =
      holders.split == plan::Linear::Split::Inputs ? Fp8Operand::Input : Fp8Operand::OutputGradient;
  const auto add = [this](Fp8Operand operand, const comm::Group& group) {
    if (group.size() > 1) holders_[static_cast<std::size_t>(operand)].push_back(group);
  };
  for (const Fp8Operand operand : {in_slices, Fp8Operand::Weight}) add(operand, holders.slices);
  for (const Fp8Operand operand : {Fp8Operand::Input, Fp8Operand::OutputGradient}) add(operand, holders.sequence);
}

Fp8Scale Fp8Products::current_scale(const at::Tensor& x, Fp8Operand operand) const {
  return scaling_->current_scale(layer_, operand, x, holders_[static_cast<std::size_t>(operand)]);
}

void Fp8Pass::see(const at::Tensor& x, Fp8Operand operand) const {
  if (recipe().delayed()) layer_->scaling_->see(layer_->layer_, operand, x);
}

Fp8Scale Fp8Pass::scale_of(const at::Tensor& x, Fp8Operand operand) {
  if (recipe().delayed()) return layer_->scaling_->delayed_scale(layer_->layer_, operand);
  if (operand == Fp8Operand::Weight) return layer_->current_scale(x, operand);
  Fp8Scale& scale = scales_[static_cast<std::size_t>(operand)];
  if (!scale.scale.defined()) scale = layer_->current_scale(x, operand);
  return scale;
}

Fp8Pass::Quantized Fp8Pass::quantized(const at::Tensor& x, Fp8Operand operand) {
  const Fp8Scale scale = scale_of(x, operand);
  return {fp8_quantized(x.reshape({-1, x.size(-1)}), recipe().type(operand), scale), scale.inverse};
}

Fp8Tile Fp8Pass::tile_of(Fp8Operand operand, Along along) const {
  return {recipe().in_squares(operand) ? Along::Both : along, recipe().block()};
}

Fp8Matrix Fp8Pass::matrix_of(const at::Tensor& x, Fp8Operand operand, Along along) const {
  const plan::Fp8Type type = recipe().type(operand);
  if (recipe().in_squares(operand)) return fp8_matrix_of_squares(x, type, along == Along::First);
  return fp8_matrix_of_tiles(x, type, tile_of(operand, along));
}

at::Tensor Fp8Pass::rounded(const at::Tensor& x, Fp8Operand operand, Along along) {
  if (recipe().in_blocks()) return fp8_rounded_in_blocks(x, recipe().type(operand), tile_of(operand, along));
  return fp8_rounded(x, recipe().type(operand), scale_of(x, operand));
}

void Fp8Pass::see_gradient(const at::Tensor& dy) {
  see(dy, Fp8Operand::OutputGradient);
  if (recipe().scales == plan::Fp8Scales::Tensor) scale_of(dy, Fp8Operand::OutputGradient);
}

// Sums are those of Transformer Engine's products: fast ones forward, full ones backward; of blocks full ones always.

at::Tensor Fp8Pass::output(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  see(x, Fp8Operand::Input);
  see(w, Fp8Operand::Weight);
  if (!has_units(x, w, recipe())) {
    const at::Tensor input = rounded(x, Fp8Operand::Input, Along::Last);
    return kernels::linear(input, rounded(w, Fp8Operand::Weight, Along::Last), nullptr, bias);
  }
  auto shape = x.sizes().vec();
  shape.back() = w.size(0);
  at::Tensor y;
  if (recipe().in_blocks()) {
    const Fp8Matrix input = matrix_of(x, Fp8Operand::Input, Along::Last),
                    weight = matrix_of(w, Fp8Operand::Weight, Along::Last);
    y = fp8_product(input, weight, scaled_type(x.scalar_type())).to(x.scalar_type());
  } else {
    const Quantized input = quantized(x, Fp8Operand::Input), weight = quantized(w, Fp8Operand::Weight);
    y = at::_scaled_mm(input.numbers, weight.numbers.t(), input.inverse, weight.inverse, {}, {}, x.scalar_type(),
                       /*use_fast_accum=*/true);
  }
  y = y.view(shape);
  return bias.defined() ? y.add_(bias) : y;
}

at::Tensor Fp8Pass::input_gradient(const at::Tensor& dy, const at::Tensor& w) {
  if (!has_units(dy, w, recipe())) {
    const at::Tensor gradient = rounded(dy, Fp8Operand::OutputGradient, Along::Last);
    return kernels::linear_input_gradient(gradient, rounded(w, Fp8Operand::Weight, Along::First));
  }
  auto shape = dy.sizes().vec();
  shape.back() = w.size(1);
  if (recipe().in_blocks()) {
    const Fp8Matrix gradient = matrix_of(dy, Fp8Operand::OutputGradient, Along::Last),
                    weight = matrix_of(w, Fp8Operand::Weight, Along::First);
    return fp8_product(gradient, weight, scaled_type(dy.scalar_type())).to(dy.scalar_type()).view(shape);
  }
  const Quantized gradient = quantized(dy, Fp8Operand::OutputGradient), weight = quantized(w, Fp8Operand::Weight);
  return at::_scaled_mm(gradient.numbers, by_columns(weight.numbers), gradient.inverse, weight.inverse, {}, {},
                        dy.scalar_type())
      .view(shape);
}

void Fp8Pass::weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) {
  if (!recipe().weight_gradients) return kernels::linear_weight_gradient(grad_w, dy, x, beta);
  const bool in_blocks = recipe().in_blocks();
  if (!has_units(x, grad_w, recipe()) || (in_blocks && x.size(0) % recipe().block() != 0)) {
    const at::Tensor gradient = rounded(dy, Fp8Operand::OutputGradient, Along::First);
    return kernels::linear_weight_gradient(grad_w, gradient, rounded(x, Fp8Operand::Input, Along::First), beta);
  }
  if (in_blocks) {
    const Fp8Matrix gradient = matrix_of(dy, Fp8Operand::OutputGradient, Along::First),
                    input = matrix_of(x, Fp8Operand::Input, Along::First);
    return add_to_gradient(grad_w, fp8_product(gradient, input, at::kFloat), beta);
  }
  const Quantized gradient = quantized(dy, Fp8Operand::OutputGradient), input = quantized(x, Fp8Operand::Input);
  const at::Tensor product = at::_scaled_mm(gradient.numbers.t().contiguous(), by_columns(input.numbers),
                                            gradient.inverse, input.inverse, {}, {}, at::kFloat);
  add_to_gradient(grad_w, product, beta);
}

}  // namespace megatron::parallel
