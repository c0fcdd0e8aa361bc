#include "megatron/optim/update_rule.h"

namespace megatron::optim {
namespace {

class AdamRule final : public UpdateRule {
 public:
  explicit AdamRule(const kernels::Adam& options) : options_(options) {}
  std::string name() const override { return "adam"; }
  std::vector<std::string> state() const override { return {"exp_avg", "exp_avg_sq"}; }
  void apply(const Views& v, const kernels::Update& update) const override {
    kernels::adam_(v.weight, v.model, v.gradient, v.state[0], v.state[1], options_, update);
  }

 private:
  kernels::Adam options_;
};

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(double momentum) : momentum_(momentum) {}
  std::string name() const override { return "sgd"; }
  std::vector<std::string> state() const override {
    if (momentum_ == 0) return {};
    return {"momentum_buffer"};
  }
  void apply(const Views& v, const kernels::Update& update) const override {
    kernels::sgd_(v.weight, v.model, v.gradient, momentum_ == 0 ? at::Tensor() : v.state[0], momentum_, update);
  }

 private:
  double momentum_;
};

class LionRule final : public UpdateRule {
 public:
  explicit LionRule(const kernels::Lion& options) : options_(options) {}
  std::string name() const override { return "lion"; }
  std::vector<std::string> state() const override { return {"exp_avg"}; }
  void apply(const Views& v, const kernels::Update& update) const override {
    kernels::lion_(v.weight, v.model, v.gradient, v.state[0], options_, update);
  }

 private:
  kernels::Lion options_;
};

}  // namespace

std::unique_ptr<UpdateRule> adam(const kernels::Adam& options) { return std::make_unique<AdamRule>(options); }
std::unique_ptr<UpdateRule> sgd(double momentum) { return std::make_unique<SgdRule>(momentum); }
std::unique_ptr<UpdateRule> lion(const kernels::Lion& options) { return std::make_unique<LionRule>(options); }

}  // namespace megatron::optim
