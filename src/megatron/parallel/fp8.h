#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/kernels/fp8/fp8.h"
#include "megatron/parallel/fp8/blocks.h"
#include "megatron/plan/parameters/fp8.h"

// Linear layers whose products read 8-bit numbers (plan/parameters/fp8.h). Where the GPU's matrix units do not compute
// them, on the CPU always, the product is that of the same numbers in the model's type: each operand is rounded to an
// 8-bit number times a power of two, which bf16, fp16, float32 and float64 all have, so that only sums are rounded
// otherwise.
namespace megatron::parallel {

using kernels::Fp8Scale;

/// What kernels/fp8/fp8.h has of a plan's type.
at::ScalarType scalar_type_of(plan::Fp8Type type);
Fp8Scale fp8_scale_of(const at::Tensor& amax, plan::Fp8Type type);

/// The scales of all linear layers of a model that compute in 8 bits, on every rank, and the largest magnitudes that
/// this rank's layers have multiplied since the step began. Of scales of blocks there is nothing to keep or to see: the
/// layers' numbers and the recipe alone. One object of a rank; not thread-safe.
class Fp8Scaling {
 public:
  /// `layers`: plan::fp8_layers(). Delayed scales begin as 1, histories as 0. Magnitudes are kept on `device`.
  Fp8Scaling(const plan::Fp8Recipe& recipe, const std::vector<std::string>& layers, at::Device device);

  const plan::Fp8Recipe& recipe() const { return recipe_; }
  bool keeps_magnitudes() const { return !recipe_.in_blocks(); }  ///< else nothing is seen or updated
  std::int64_t layers() const { return std::ssize(numbers_); }
  const std::string& first_layer() const { return first_layer_; }              ///< the name of number 0; "": none
  std::int64_t number_of(const std::string& layer) const;                      ///< throws std::out_of_range naming it
  double scale(std::int64_t layer, plan::Fp8Operand operand) const;            ///< of the step, with delayed scaling
  Fp8Scale delayed_scale(std::int64_t layer, plan::Fp8Operand operand) const;  ///< the same

  /// x is an operand of the step. Does not wait for the device. A weight is looked at once per step.
  void see(std::int64_t layer, plan::Fp8Operand operand, const at::Tensor& x);
  /// For who looks at an operand while it does something else with it: what becomes the larger of itself and the
  /// largest magnitude, a view. Undefined of a weight that was looked at in this step.
  at::Tensor to_note(std::int64_t layer, plan::Fp8Operand operand);
  /// The scale of x, an operand of the step that each rank of `holders` has a part of, or has whole: where scales are
  /// not delayed. Communication: an all-reduce of one number over each of them. A weight is looked at once per step and
  /// in what is computed between steps; whoever changes it elsewhere calls forget_magnitudes().
  Fp8Scale current_scale(std::int64_t layer, plan::Fp8Operand operand, const at::Tensor& x,
                         std::span<const comm::Group> holders);
  /// Nothing was multiplied yet: a step begins, or its passes are computed again, or weights are others.
  void forget_magnitudes();
  /// Since forget_magnitudes(): [layers, kFp8Operands] float32 on the device, 0 where this rank has multiplied none,
  /// infinity where one is not finite. A copy.
  at::Tensor magnitudes() const;
  /// Ends a step, whose weights were updated: `magnitudes`, on the CPU, are the largest of all ranks. Delayed scales of
  /// the next step follow.
  void update(const at::Tensor& magnitudes);

  // Delayed scales for checkpoints, written in place, float32 on the CPU:
  const at::Tensor& scales() const { return scales_; }  ///< [layers, kFp8Operands]
  const at::Tensor& history() const {
    return history_;
  }  ///< [recipe.history, layers, kFp8Operands], the last step first
  /// They were read from a checkpoint, maybe of another recipe: scales follow from the history again.
  void restored();
  void reset();  ///< as at first
  std::int64_t bytes() const;

 private:
  at::Tensor magnitude(std::int64_t layer, plan::Fp8Operand operand) const;
  void compute_scales();

  plan::Fp8Recipe recipe_;
  std::unordered_map<std::string, std::int64_t> numbers_;
  std::string first_layer_;
  at::Tensor scales_, history_;  ///< undefined where scales are not delayed
  /// [layers, kFp8Operands] float32 on the device; inverses of delayed scales. Undefined where none are kept.
  at::Tensor inverses_, magnitudes_;
  std::vector<bool> weight_seen_;
  std::vector<Fp8Scale> weight_scales_;  ///< that are not delayed; undefined: not looked at
};

/// The ranks that hold a layer's operands in parts, over whom a current scale takes the largest magnitude.
struct Fp8Holders {
  plan::Linear::Split split = plan::Linear::Split::Outputs;
  comm::Group slices = {};    ///< of the weight, and with it of the output's gradient or, with Split::Inputs, the input
  comm::Group sequence = {};  ///< of each sequence's tokens
};

/// A linear layer that computes in 8 bits.
class Fp8Products {
 public:
  /// `layer`: its name. Throws as Fp8Scaling::number_of().
  Fp8Products(std::shared_ptr<Fp8Scaling> scaling, const std::string& layer, const Fp8Holders& holders = {});

 private:
  friend class Fp8Pass;
  Fp8Scale current_scale(const at::Tensor& x, plan::Fp8Operand operand) const;

  std::shared_ptr<Fp8Scaling> scaling_;
  std::int64_t layer_;
  std::array<std::vector<comm::Group>, plan::kFp8Operands> holders_;  ///< of each operand
};
using Fp8ProductsPtr = std::shared_ptr<const Fp8Products>;

/// The products of a linear layer with its weight in one pass, as those of kernels/matmul.h; the first dimension of x
/// and dy is that of a sequence's tokens. Communication: where tensors have scales of their own,
/// Fp8Scaling::current_scale() of each operand when it is first read, in the order of the calls.
class Fp8Pass {
 public:
  explicit Fp8Pass(Fp8ProductsPtr layer) : layer_(std::move(layer)) {}

  at::Tensor output(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);
  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w);
  void weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta);
  /// A backward pass calls it first, with the gradient that its products read. `input`, `weight`: whose gradients it
  /// computes at once; of both the units' copies of dy are made together, in the first.
  void see_gradient(const at::Tensor& dy, bool input = true, bool weight = false);

 private:
  const plan::Fp8Recipe& recipe() const { return layer_->scaling_->recipe(); }
  /// Where the magnitude of an operand is noted that is quantized now: for delayed scales, once in a pass.
  at::Tensor to_note(plan::Fp8Operand operand);
  Fp8Scale scale_of(const at::Tensor& x, plan::Fp8Operand operand);
  /// What units read of x, with scales of blocks or not; then `inverse` is that of all.
  Fp8Matrices quantized(const at::Tensor& x, plan::Fp8Operand operand, kernels::Fp8Wanted wanted);
  at::Tensor product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype, bool fast_sums = false) const;
  /// `along`: which dimension of x the product sums over. Scales of blocks follow it.
  at::Tensor rounded(const at::Tensor& x, plan::Fp8Operand operand, Fp8Tile::Along along);
  /// Whether units compute the gradient of a weight like w.
  bool has_units_for_weight(const at::Tensor& dy, const at::Tensor& w) const;

  Fp8ProductsPtr layer_;
  std::array<Fp8Scale, plan::kFp8Operands> scales_;  ///< of the pass's input and gradient; undefined: not yet
  std::array<bool, plan::kFp8Operands> noted_ = {};
  bool both_gradients_ = false;
  Fp8Matrix turned_gradient_;  ///< made with the other copy, until the weight's gradient is computed
};

}  // namespace megatron::parallel
