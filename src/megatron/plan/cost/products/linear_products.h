#pragma once
#include <optional>

#include "megatron/config/run_config.h"
#include "megatron/plan/cost/cost_model.h"
#include "megatron/plan/parameters/fp8.h"

// The time of linear layers' products with their weights, in train.dtype or, with fp8.format, in 8 bits.
namespace megatron::plan {

/// Products, and what is done for them besides.
struct LinearCost {
  double products_s = 0;
  double moved_bytes = 0;  ///< read and written besides: operands are looked at and rounded
  double launches = 0;     ///< operations for that
};

/// Of the linear layers of a run's transformer layers, as parallel/fp8.cpp computes them. A product is that of the
/// forward pass: count, m rows of k inputs, n outputs.
class LinearProducts {
 public:
  /// With fp8.format on hardware without fp8_tflops products of train.dtype emulate those in 8 bits; ConfigError where
  /// parallel.device is cuda, on which such a run is refused, or the hardware's capability is one that
  /// require_fp8_units() refuses.
  /// `in_8_bits`: false of layers that are LayerSpec::wide.
  LinearProducts(const ResolvedRun& run, const Hardware& hardware, bool in_8_bits = true);

  /// y = x w^T.
  LinearCost forward(const Product& product) const;
  /// dx = dy w, with what is found out of dy for dw too.
  LinearCost input_gradient(const Product& product) const;
  /// dw = dy^T x, added to the step's sum.
  LinearCost weight_gradient(const Product& product) const;
  /// Once per step: the largest magnitude of w; of scales of blocks nothing.
  LinearCost of_step(const Product& product) const;
  /// Whether ranks that hold parts of an operand agree on its scale in each pass.
  bool agrees_on_scales() const { return fp8_ && fp8_->scales == Fp8Scales::Tensor; }
  /// Operations per second, by which utilization is judged: of 8-bit numbers where units multiply them.
  double peak() const;

 private:
  /// Whether matrix units multiply 8-bit numbers of these sizes, of which each must divide by 16, with scales of blocks
  /// n and k by Fp8Recipe::block().
  bool on_units(const Product& product) const;
  /// The product alone, in 8 bits where on_units(), with so many bytes for a number of the result.
  LinearCost multiplied(const Product& product, double result_bytes) const;
  /// Whether those of the weight's gradient are, so that dy is made for both gradients at once: not counted where one
  /// is put off.
  bool weight_on_units(const Product& product) const;
  /// x or dy, of which so many copies are made, times the weight.
  LinearCost by_weight(const Product& product, int copies) const;
  /// Adds what makes `numbers` of an operand 8-bit numbers, or without units numbers of train.dtype again.
  void add_rounding(LinearCost& cost, double numbers, bool units, int copies) const;
  /// Adds what finds the largest magnitude of an operand.
  void add_magnitude(LinearCost& cost, double numbers) const;

  const Hardware& hardware_;
  std::string dtype_;
  double element_, gradient_;  ///< bytes of a number, and of one of a gradient
  double samples_;             ///< of a microbatch
  double first_microbatches_;  ///< the share of a step's that write gradients; the others add to them
  std::optional<Fp8Recipe> fp8_;
  bool has_units_ = false;  ///< for fp8_
};

}  // namespace megatron::plan
