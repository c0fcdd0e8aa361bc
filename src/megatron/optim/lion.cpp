#include "megatron/optim/update_rule.h"

namespace megatron::optim {
namespace {

/// Chen et al. 2023.
class Lion final : public UpdateRule {
 public:
  explicit Lion(const kernels::Lion& options) : options_(options) {}
  void apply(const Views& v, const kernels::Update& update) const override {
    kernels::lion_(v.weight, v.model, v.gradient, v.state[0], options_, update);
  }

 private:
  kernels::Lion options_;
};

}  // namespace

std::unique_ptr<UpdateRule> lion_rule(const config::OptimizerConfig& optimizer) {
  return std::make_unique<Lion>(kernels::Lion{.beta1 = optimizer.lion_beta1, .beta2 = optimizer.lion_beta2});
}

}  // namespace megatron::optim
