#include "megatron/plan/cost/products/linear_products.h"

#include <cmath>

#include "megatron/base/error.h"
#include "megatron/plan/cost/rank_buffers.h"

namespace megatron::plan {
namespace {

constexpr double kWide = 4;  ///< bytes of float32, in which units give weight gradients

bool divides(double unit, double size) { return std::fmod(size, unit) == 0; }

}  // namespace

LinearProducts::LinearProducts(const ResolvedRun& run, const Hardware& hardware, bool in_8_bits)
    : hardware_(hardware),
      dtype_(run.config.train.dtype),
      element_(static_cast<double>(element_bytes_of(run.config).value)),
      gradient_(static_cast<double>(element_bytes_of(run.config).gradient)),
      samples_(static_cast<double>(run.config.train.micro_batch_size)),
      first_microbatches_(1 / static_cast<double>(run.microbatches_per_step)),
      fp8_(in_8_bits ? fp8_recipe(run.config.fp8) : std::nullopt),
      has_units_(fp8_ && hardware.compute.fp8_tflops > 0 && dtype_ != "fp64") {
  if (fp8_ && hardware.compute.fp8_tflops == 0 && run.config.parallel.device == "cuda")
    throw ConfigError(rule_got_fix(
        concat("the hardware ", hardware.name, " must multiply 8-bit numbers for fp8.format."),
        "fp8_tflops 0, parallel.device cuda", "--fp8-format none (the default), or fp8_tflops in its [compute]"));
  const double capability = hardware.compute.capability;
  if (!fp8_ || capability == 0 || run.config.parallel.device != "cuda") return;
  const auto tenths = static_cast<int>(std::lround(10 * capability));
  require_fp8_units(*fp8_, tenths / 10, tenths % 10, std::nullopt, hardware.name);
}

bool LinearProducts::on_units(const Product& product) const {
  const double unit = fp8_ && fp8_->in_blocks() ? static_cast<double>(fp8_->block()) : 16;
  return has_units_ && divides(16, product.m) && divides(unit, product.n) && divides(unit, product.k);
}

// What is counted are the launches of kernels/fp8/fp8.h on a GPU, which read an operand once.

void LinearProducts::add_magnitude(LinearCost& cost, double numbers) const {
  if (fp8_->delayed()) ++cost.launches;  // the largest of those that the rounding's blocks found
  if (fp8_->scales != Fp8Scales::Tensor) return;
  cost.moved_bytes += numbers * element_;
  cost.launches += 3;  // of blocks, of all, its scale
}

void LinearProducts::add_rounding(LinearCost& cost, double numbers, bool units, int copies) const {
  cost.moved_bytes += numbers * (element_ + (units ? copies : element_));
  ++cost.launches;
}

LinearCost LinearProducts::multiplied(const Product& product, double result_bytes) const {
  if (!on_units(product)) return {.products_s = product_s(hardware_, dtype_, product)};
  return {.products_s = product_s(hardware_, kFp8, product, result_bytes)};
}

bool LinearProducts::weight_on_units(const Product& product) const {
  const auto& [count, m, n, k] = product;
  if (!fp8_->weight_gradients) return false;
  const double unit = fp8_->in_blocks() ? static_cast<double>(fp8_->block()) * samples_ : 16;  // blocks of one sequence
  return on_units(product) && on_units({count, n, k, m}) && divides(unit, m);
}

LinearCost LinearProducts::by_weight(const Product& product, int copies) const {
  const auto& [count, m, n, k] = product;
  LinearCost cost = multiplied(product, element_);
  if (!fp8_) return cost;
  add_magnitude(cost, count * m * k);
  add_rounding(cost, count * m * k, on_units(product), copies);
  add_rounding(cost, count * n * k, on_units(product), 1);
  return cost;
}

LinearCost LinearProducts::forward(const Product& product) const { return by_weight(product, 1); }

LinearCost LinearProducts::input_gradient(const Product& product) const {
  const auto& [count, m, n, k] = product;
  return by_weight({count, m, k, n}, fp8_ && weight_on_units(product) ? 2 : 1);
}

LinearCost LinearProducts::weight_gradient(const Product& product) const {
  const auto& [count, m, n, k] = product;
  const Product own{count, n, k, m};
  if (!fp8_ || !fp8_->weight_gradients) return {.products_s = product_s(hardware_, dtype_, own)};
  if (!weight_on_units(product)) {
    LinearCost cost{.products_s = product_s(hardware_, dtype_, own)};
    add_rounding(cost, count * m * n, false, 1);
    add_rounding(cost, count * m * k, false, 1);
    return cost;
  }
  LinearCost cost = multiplied(own, kWide);
  add_rounding(cost, count * m * k, true, 1);                              // dy was, with its other copy
  const double copied = kWide + gradient_, added = kWide + 2 * gradient_;  // copy_; add_
  cost.moved_bytes += count * n * k * (first_microbatches_ * copied + (1 - first_microbatches_) * added);
  ++cost.launches;
  return cost;
}

double LinearProducts::peak() const { return peak_flops(hardware_, has_units_ ? kFp8 : dtype_); }

LinearCost LinearProducts::of_step(const Product& product) const {
  LinearCost cost;
  if (fp8_) add_magnitude(cost, product.count * product.n * product.k);
  return cost;
}

}  // namespace megatron::plan
