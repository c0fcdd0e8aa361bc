#include "megatron/optim/update_rule.h"

namespace megatron::optim {
namespace {

/// Kingma & Ba 2015; with decoupled decay AdamW (Loshchilov & Hutter 2019).
class Adam final : public UpdateRule {
 public:
  explicit Adam(const kernels::Adam& options) : options_(options) {}
  void apply(const Views& v, const kernels::Update& update) const override {
    kernels::Adam options = options_;
    options.eps *= update.eps_factor;
    kernels::adam_(v.weight, v.model, v.gradient, v.state[0], v.state[1], options, update);
  }

 private:
  kernels::Adam options_;
};

}  // namespace

std::unique_ptr<UpdateRule> adam_rule(const config::OptimizerConfig& optimizer) {
  return std::make_unique<Adam>(
      kernels::Adam{.beta1 = optimizer.adam_beta1, .beta2 = optimizer.adam_beta2, .eps = optimizer.adam_eps});
}

}  // namespace megatron::optim
