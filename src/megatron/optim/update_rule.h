#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "megatron/config/optimizer_config.h"
#include "megatron/kernels/optimizer.h"

namespace megatron::optim {

/// How new weights follow from gradients, element by element; what an optimizer is beyond its bookkeeping. What it
/// keeps for each element is in its row of config/optimizers.def.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// Flat views of as many elements each.
  struct Views {
    at::Tensor weight;  ///< float32 or float64: what is updated
    at::Tensor model;   ///< undefined, or the bf16 or fp16 copy that the network computes with
    at::Tensor gradient;
    std::vector<at::Tensor> state;  ///< in the order of the row's names
  };
  virtual void apply(const Views& views, const kernels::Update& update) const = 0;

  /// Whether the matrices of layers are updated as whole matrices: by the two functions below, not by apply().
  virtual bool takes_matrices() const { return false; }
  /// Advances the state; what matrix_update() is made of, flat, in the weights' precision. Element by element.
  virtual at::Tensor direction(const Views& views, const kernels::Update& update) const;
  /// What a whole matrix changes by, divided by minus the learning rate. `direction` [rows, columns].
  virtual at::Tensor matrix_update(const at::Tensor& direction) const;
};

// One for each row: adam_rule() in adam.cpp, ….
#define OPTIMIZER(name, paper, ...) std::unique_ptr<UpdateRule> name##_rule(const config::OptimizerConfig& optimizer);
#include "megatron/config/optimizers.def"

/// The rule of optimizer.name; throws std::out_of_range where no row of config/optimizers.def has it.
std::unique_ptr<UpdateRule> make_rule(const config::OptimizerConfig& optimizer);

}  // namespace megatron::optim
