#include "megatron/plan/cost/products/linear_products.h"

#include <cmath>

#include "megatron/base/error.h"
#include "megatron/plan/cost/rank_buffers.h"

namespace megatron::plan {
namespace {

constexpr double kOfScale = 6;  ///< operations that make a scale of a magnitude
constexpr double kWide = 4;     ///< bytes of float32, in which fp16 is scaled and units give weight gradients

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

// What is counted are ATen's operations, each of which reads its operand and writes its result.

void LinearProducts::add_magnitude(LinearCost& cost, double numbers) const {
  cost.moved_bytes += numbers * element_;     // aminmax
  cost.launches += dtype_ == "fp32" ? 5 : 6;  // and of single numbers neg, maximum, to, maximum, copy_
  if (fp8_->scales == Fp8Scales::Tensor) cost.launches += kOfScale;  // add, shift, rsub, clamp_, shift, reciprocal
}

void LinearProducts::add_block_scales(LinearCost& cost, double numbers, bool units, bool turned) const {
  cost.moved_bytes += numbers * 3 * element_;  // abs, amax
  cost.launches += 2 + kOfScale + 2;           // and of the scales mul_ and add_, for what is not finite
  const bool narrow = dtype_ != "fp32", other = narrow && dtype_ != "fp16";
  cost.launches += (narrow ? 1 : 0) + (other ? 1 : 0);  // magnitudes as float32, scales as what they multiply
  if (!units && other) ++cost.launches;                 // what divides too
  if (!units) return;
  cost.launches += fp8_->scales == Fp8Scales::Mx ? 3 : 1;  // scales as units read them
  if (turned) ++cost.launches;
}

void LinearProducts::add_rounding(LinearCost& cost, double numbers, bool units, bool turned) const {
  if (fp8_->in_blocks()) add_block_scales(cost, numbers, units, turned);
  const bool half = dtype_ == "fp16";
  const double scaled = half ? kWide : element_;
  double bytes = 5 * scaled + 1, launches = 3;  // mul, clamp_, to 8 bits
  if (half) {
    bytes += element_ + scaled;
    ++launches;
  }
  if (units && turned) {
    bytes += 2;
    ++launches;
  }
  if (!units) {
    bytes += 1 + 3 * scaled;  // back, and divided by the scale
    launches += 2;
    if (half) {
      bytes += scaled + element_;
      ++launches;
    }
  }
  cost.moved_bytes += numbers * bytes;
  cost.launches += launches;
}

LinearCost LinearProducts::multiplied(const Product& product, double result_bytes) const {
  if (!on_units(product)) return {.products_s = product_s(hardware_, dtype_, product)};
  return {.products_s = product_s(hardware_, kFp8, product, result_bytes)};
}

LinearCost LinearProducts::by_weight(const Product& product, bool turned) const {
  const auto& [count, m, n, k] = product;
  LinearCost cost = multiplied(product, element_);
  if (!fp8_) return cost;
  if (!fp8_->in_blocks()) add_magnitude(cost, count * m * k);
  add_rounding(cost, count * m * k, on_units(product), false);
  add_rounding(cost, count * n * k, on_units(product), turned);
  return cost;
}

LinearCost LinearProducts::forward(const Product& product) const { return by_weight(product, false); }

LinearCost LinearProducts::input_gradient(const Product& product) const {
  const auto& [count, m, n, k] = product;
  return by_weight({count, m, k, n}, true);
}

LinearCost LinearProducts::weight_gradient(const Product& product) const {
  const auto& [count, m, n, k] = product;
  const Product own{count, n, k, m};
  if (!fp8_ || !fp8_->weight_gradients) return {.products_s = product_s(hardware_, dtype_, own)};
  const double unit = fp8_->in_blocks() ? static_cast<double>(fp8_->block()) * samples_ : 16;  // blocks of one sequence
  const bool units = on_units(product) && on_units(own) && divides(unit, m);
  LinearCost cost = units ? multiplied(own, kWide) : LinearCost{.products_s = product_s(hardware_, dtype_, own)};
  add_rounding(cost, count * m * n, units, true);
  add_rounding(cost, count * m * k, units, true);
  if (!units) return cost;                                                                 // the product itself adds
  const double copied = kWide + gradient_, added = 2 * gradient_ + 2 * gradient_ + kWide;  // copy_; mul_ and add_
  cost.moved_bytes += count * n * k * (first_microbatches_ * copied + (1 - first_microbatches_) * added);
  cost.launches += first_microbatches_ + 2 * (1 - first_microbatches_);
  return cost;
}

double LinearProducts::peak() const { return peak_flops(hardware_, has_units_ ? kFp8 : dtype_); }

LinearCost LinearProducts::of_step(const Product& product) const {
  LinearCost cost;
  if (fp8_ && !fp8_->in_blocks()) add_magnitude(cost, product.count * product.n * product.k);
  return cost;
}

}  // namespace megatron::plan
