#include "megatron/optim/update_rule.h"

namespace megatron::optim {
namespace {

/// Stochastic gradient descent with momentum; 0: without.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(double momentum) : momentum_(momentum) {}
  void apply(const Views& v, const kernels::Update& update) const override {
    kernels::sgd_(v.weight, v.model, v.gradient, momentum_ == 0 ? at::Tensor() : v.state[0], momentum_, update);
  }

 private:
  double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> sgd_rule(const config::OptimizerConfig& optimizer) {
  return std::make_unique<Sgd>(optimizer.sgd_momentum);
}

}  // namespace megatron::optim
