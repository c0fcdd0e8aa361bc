#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/kernels/optimizer.h"

namespace megatron::optim {

/// How new weights follow from gradients, element by element; what an optimizer is beyond its bookkeeping.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// "adam", "sgd", "lion", as optimizer.name says it: state of the same name means something else to another rule.
  virtual std::string name() const = 0;
  /// What it keeps for each element, by the names that checkpoints have; all begin as zeros.
  virtual std::vector<std::string> state() const = 0;

  /// Flat views of as many elements each.
  struct Views {
    at::Tensor weight;  ///< float32 or float64: what is updated
    at::Tensor model;   ///< undefined, or the bf16 or fp16 copy that the network computes with
    at::Tensor gradient;
    std::vector<at::Tensor> state;  ///< in the order of state()
  };
  virtual void apply(const Views& views, const kernels::Update& update) const = 0;
};

/// Kingma & Ba 2015; with decoupled decay AdamW (Loshchilov & Hutter 2019).
std::unique_ptr<UpdateRule> adam(const kernels::Adam& options);
/// Stochastic gradient descent with momentum; 0: without.
std::unique_ptr<UpdateRule> sgd(double momentum);
/// Chen et al. 2023.
std::unique_ptr<UpdateRule> lion(const kernels::Lion& options);

}  // namespace megatron::optim
