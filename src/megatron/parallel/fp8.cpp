#include "megatron/parallel/fp8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"

namespace megatron::parallel {
namespace {

using plan::Fp8Operand;
using Along = Fp8Tile::Along;

/// What units write of blocks: of fp16 not fp16.
at::ScalarType scaled_type(at::ScalarType type) { return type == at::kHalf ? at::kFloat : type; }

std::int64_t row_count(const at::Tensor& x) { return x.numel() / x.size(-1); }

/// Whether the matrix units of the device compute the products of x [.., k] and w [n, k]: they want multiples of 16,
/// and of features whole blocks. The emulated device has some for float64 too.
bool has_units(const at::Tensor& x, const at::Tensor& w, const plan::Fp8Recipe& recipe) {
  const std::int64_t unit = recipe.in_blocks() ? recipe.block() : 16;
  const bool any = x.is_cuda() ? x.scalar_type() != at::kDouble : kernels::emulates_cuda();
  return any && row_count(x) % 16 == 0 && w.size(0) % unit == 0 && w.size(1) % unit == 0;
}

/// grad_w (= or +=, by beta) product.
void add_to_gradient(const at::Tensor& grad_w, const at::Tensor& product, double beta) {
  if (beta == 0)
    grad_w.copy_(product);
  else
    (beta == 1 ? grad_w : grad_w.mul_(beta)).add_(product);
}

}  // namespace

at::ScalarType scalar_type_of(plan::Fp8Type type) {
  return type == plan::Fp8Type::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

Fp8Scale fp8_scale_of(const at::Tensor& amax, plan::Fp8Type type) {
  return kernels::fp8_scale_of(amax, scalar_type_of(type));
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

at::Tensor Fp8Scaling::magnitude(std::int64_t layer, Fp8Operand operand) const {
  return magnitudes_.select(0, layer).select(0, static_cast<std::int64_t>(operand));
}

at::Tensor Fp8Scaling::to_note(std::int64_t layer, Fp8Operand operand) {
  if (operand == Fp8Operand::Weight) {
    if (weight_seen_[static_cast<std::size_t>(layer)]) return {};
    weight_seen_[static_cast<std::size_t>(layer)] = true;
  }
  return magnitude(layer, operand);
}

void Fp8Scaling::see(std::int64_t layer, Fp8Operand operand, const at::Tensor& x) {
  if (x.numel() == 0) return;
  if (const at::Tensor seen = to_note(layer, operand); seen.defined()) (void)kernels::fp8_magnitude(x, seen);
}

Fp8Scale Fp8Scaling::current_scale(std::int64_t layer, Fp8Operand operand, const at::Tensor& x,
                                   std::span<const comm::Group> holders) {
  const bool is_weight = operand == Fp8Operand::Weight;
  if (is_weight && weight_scales_.at(static_cast<std::size_t>(layer)).scale.defined())
    return weight_scales_[static_cast<std::size_t>(layer)];
  // Noted before a maximum over ranks, which may lose a NaN.
  const at::Tensor largest = kernels::fp8_magnitude(x, magnitude(layer, operand));
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

at::Tensor Fp8Pass::to_note(Fp8Operand operand) {
  bool& noted = noted_[static_cast<std::size_t>(operand)];
  if (!recipe().delayed() || std::exchange(noted, true)) return {};
  return layer_->scaling_->to_note(layer_->layer_, operand);
}

Fp8Scale Fp8Pass::scale_of(const at::Tensor& x, Fp8Operand operand) {
  if (recipe().delayed()) return layer_->scaling_->delayed_scale(layer_->layer_, operand);
  if (operand == Fp8Operand::Weight) return layer_->current_scale(x, operand);
  Fp8Scale& scale = scales_[static_cast<std::size_t>(operand)];
  if (!scale.scale.defined()) scale = layer_->current_scale(x, operand);
  return scale;
}

Fp8Matrices Fp8Pass::quantized(const at::Tensor& x, Fp8Operand operand, kernels::Fp8Wanted wanted) {
  const at::ScalarType type = scalar_type_of(recipe().type(operand));
  if (recipe().in_blocks())
    return kernels::fp8_matrices(x, type, recipe().block(), recipe().in_squares(operand), wanted);
  const Fp8Scale scale = scale_of(x, operand);
  const kernels::Fp8Numbers numbers =
      kernels::fp8_numbers(x.reshape({-1, x.size(-1)}), type, scale, wanted, to_note(operand));
  return {{numbers.rows, scale.inverse, {}}, {numbers.turned, scale.inverse, {}}};
}

// Sums are those of Transformer Engine's products: fast ones forward, full ones backward; of blocks full ones always.
at::Tensor Fp8Pass::product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype, bool fast_sums) const {
  if (a.numbers.is_cpu()) return fp8_emulated_product(a, b, dtype);
  if (recipe().in_blocks()) return fp8_product(a, b, scaled_type(dtype)).to(dtype);
  return at::_scaled_mm(a.numbers, b.numbers.t(), a.inverse, b.inverse, {}, {}, dtype, fast_sums);
}

at::Tensor Fp8Pass::rounded(const at::Tensor& x, Fp8Operand operand, Along along) {
  const at::ScalarType type = scalar_type_of(recipe().type(operand));
  if (recipe().in_blocks())
    return kernels::fp8_rounded_in_blocks(x, type,
                                          {recipe().in_squares(operand) ? Along::Both : along, recipe().block()});
  return kernels::fp8_rounded(x, type, scale_of(x, operand), to_note(operand));
}

bool Fp8Pass::has_units_for_weight(const at::Tensor& dy, const at::Tensor& w) const {
  return has_units(dy, w, recipe()) && (!recipe().in_blocks() || dy.size(0) % recipe().block() == 0);
}

void Fp8Pass::see_gradient(const at::Tensor& dy, bool input, bool weight) {
  constexpr auto kGradient = Fp8Operand::OutputGradient;
  both_gradients_ = input && weight && recipe().weight_gradients;
  if (recipe().scales == plan::Fp8Scales::Tensor) scale_of(dy, kGradient);
  if (input) return;  // who quantizes it looks at it
  if (const at::Tensor seen = to_note(kGradient); seen.defined()) (void)kernels::fp8_magnitude(dy, seen);
}

at::Tensor Fp8Pass::output(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  if (!has_units(x, w, recipe())) {
    const at::Tensor input = rounded(x, Fp8Operand::Input, Along::Last);
    return kernels::linear(input, rounded(w, Fp8Operand::Weight, Along::Last), nullptr, bias);
  }
  auto shape = x.sizes().vec();
  shape.back() = w.size(0);
  const Fp8Matrix input = quantized(x, Fp8Operand::Input, {}).rows, weight = quantized(w, Fp8Operand::Weight, {}).rows;
  const at::Tensor y = product(input, weight, x.scalar_type(), /*fast_sums=*/true).view(shape);
  return bias.defined() ? y.add_(bias) : y;
}

at::Tensor Fp8Pass::input_gradient(const at::Tensor& dy, const at::Tensor& w) {
  if (!has_units(dy, w, recipe())) {
    const at::Tensor gradient = rounded(dy, Fp8Operand::OutputGradient, Along::Last);
    return kernels::linear_input_gradient(gradient, rounded(w, Fp8Operand::Weight, Along::First));
  }
  auto shape = dy.sizes().vec();
  shape.back() = w.size(1);
  Fp8Matrices gradient =
      quantized(dy, Fp8Operand::OutputGradient, {.turned = both_gradients_ && has_units_for_weight(dy, w)});
  turned_gradient_ = std::move(gradient.turned);
  const Fp8Matrix weight = quantized(w, Fp8Operand::Weight, {.rows = false, .turned = true}).turned;
  return product(gradient.rows, weight, dy.scalar_type()).view(shape);
}

void Fp8Pass::weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) {
  if (!recipe().weight_gradients) return kernels::linear_weight_gradient(grad_w, dy, x, beta);
  if (!has_units_for_weight(dy, grad_w)) {
    const at::Tensor gradient = rounded(dy, Fp8Operand::OutputGradient, Along::First);
    return kernels::linear_weight_gradient(grad_w, gradient, rounded(x, Fp8Operand::Input, Along::First), beta);
  }
  constexpr kernels::Fp8Wanted kTurned{.rows = false, .turned = true};
  Fp8Matrix gradient = std::exchange(turned_gradient_, {});
  if (!gradient.numbers.defined()) gradient = quantized(dy, Fp8Operand::OutputGradient, kTurned).turned;
  const Fp8Matrix input = quantized(x, Fp8Operand::Input, kTurned).turned;
  const at::ScalarType sums = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  add_to_gradient(grad_w, product(gradient, input, sums), beta);
}

}  // namespace megatron::parallel
