#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/plan/parameters/fp8.h"

// Linear layers whose products read 8-bit numbers (plan/parameters/fp8.h). Where the GPU's matrix units do not compute
// them, on the CPU always, the product is that of the same numbers in the model's type: each operand is rounded to an
// 8-bit number times a power of two, which bf16, fp16, float32 and float64 all have, so that only sums are rounded
// otherwise.
namespace megatron::parallel {

/// The 8-bit numbers nearest to scale * x, ties to even, of a magnitude of at most largest_of(type): x's shape, ATen's
/// float8. NaN stays NaN. float64 is rounded to float32 on the way.
at::Tensor fp8_quantized(const at::Tensor& x, plan::Fp8Type type, double scale);
/// The same divided by `scale`, a power of two, in x's dtype.
at::Tensor fp8_rounded(const at::Tensor& x, plan::Fp8Type type, double scale);

/// The scales of all linear layers of a model that compute in 8 bits, on every rank, and the largest magnitudes that
/// this rank's layers have multiplied since the step began. One object of a rank; not thread-safe.
class Fp8Scaling {
 public:
  /// `layers`: plan::fp8_layers(). Scales begin as 1, histories as 0. Magnitudes are kept on `device`.
  Fp8Scaling(const plan::Fp8Recipe& recipe, const std::vector<std::string>& layers, at::Device device);

  const plan::Fp8Recipe& recipe() const { return recipe_; }
  std::int64_t layers() const { return scales_.size(0); }
  std::int64_t number_of(const std::string& layer) const;  ///< throws std::out_of_range naming it
  double scale(std::int64_t layer, plan::Fp8Operand operand) const;
  at::Tensor inverse_scale(std::int64_t layer, plan::Fp8Operand operand) const;  ///< float32 scalar on the device

  /// x is an operand of the step. Does not wait for the device. A weight is looked at once per step.
  void see(std::int64_t layer, plan::Fp8Operand operand, const at::Tensor& x);
  /// Nothing was multiplied yet: a step begins, or its passes are computed again.
  void forget_magnitudes();
  /// Since forget_magnitudes(): [layers, kFp8Operands] float32 on the device, 0 where this rank has multiplied none,
  /// infinity where one is not finite. A copy.
  at::Tensor magnitudes() const;
  /// Ends a step: `magnitudes`, on the CPU, are the largest of all ranks. Scales of the next step follow.
  void update(const at::Tensor& magnitudes);

  // For checkpoints, written in place, float32 on the CPU:
  const at::Tensor& scales() const { return scales_; }  ///< [layers, kFp8Operands]
  const at::Tensor& history() const {
    return history_;
  }  ///< [recipe.history, layers, kFp8Operands], the last step first
  /// They were read from a checkpoint, maybe of another recipe: scales follow from the history again.
  void restored();
  void reset();  ///< as at first
  std::int64_t bytes() const;

 private:
  void compute_scales();

  plan::Fp8Recipe recipe_;
  std::unordered_map<std::string, std::int64_t> numbers_;
  at::Tensor scales_, history_;
  at::Tensor inverses_, magnitudes_;  ///< [layers, kFp8Operands] float32 on the device
  std::vector<bool> weight_seen_;
};

/// The products of one linear layer, as those of kernels/matmul.h.
class Fp8Products {
 public:
  Fp8Products(std::shared_ptr<Fp8Scaling> scaling, const std::string& layer)
      : scaling_(std::move(scaling)), layer_(scaling_->number_of(layer)) {}

  at::Tensor output(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const;
  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w) const;
  void weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) const;
  /// A backward pass calls it with the gradient that its products read.
  void see_gradient(const at::Tensor& dy) const { scaling_->see(layer_, plan::Fp8Operand::OutputGradient, dy); }

 private:
  at::Tensor quantized(const at::Tensor& x, plan::Fp8Operand operand) const;  ///< [rows, columns]
  at::Tensor rounded(const at::Tensor& x, plan::Fp8Operand operand) const;
  at::Tensor inverse(plan::Fp8Operand operand) const { return scaling_->inverse_scale(layer_, operand); }

  std::shared_ptr<Fp8Scaling> scaling_;
  std::int64_t layer_;
};
using Fp8ProductsPtr = std::shared_ptr<const Fp8Products>;

}  // namespace megatron::parallel
