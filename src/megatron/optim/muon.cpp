#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>

#include "megatron/optim/update_rule.h"

namespace megatron::optim {
namespace {

/// Muon (Jordan et al. 2024): a matrix of a layer goes in the direction of its gradient's momentum made orthogonal, by
/// the root mean square that AdamW's updates have (Liu et al. 2025, equation 4), so that both share a learning rate.
/// Everything else by AdamW.
class Muon final : public UpdateRule {
 public:
  Muon(std::unique_ptr<UpdateRule> rest, double momentum, std::int64_t steps)
      : rest_(std::move(rest)), momentum_(momentum), steps_(steps) {}

  void apply(const Views& views, const kernels::Update& update) const override { rest_->apply(views, update); }
  bool takes_matrices() const override { return true; }

  /// Nesterov's: gradient + momentum x (momentum x state + gradient).
  at::Tensor direction(const Views& views, const kernels::Update& update) const override {
    const at::Tensor gradient = views.gradient.to(views.weight.scalar_type()) * update.grad_scale;
    const at::Tensor momentum = views.state[0].to(gradient.scalar_type()) * momentum_ + gradient;
    views.state[0].copy_(momentum);
    return gradient + momentum * momentum_;
  }

  at::Tensor matrix_update(const at::Tensor& direction) const override {
    const bool high = direction.size(0) > direction.size(1);
    at::Tensor x = high ? direction.t() : direction;
    x = x / (x.norm() + 1e-7);
    // Five steps of Newton and Schulz bring every singular value near 1; the coefficients are the author's.
    constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
    for (std::int64_t step = 0; step < steps_; ++step) {
      const at::Tensor a = at::matmul(x, x.t());
      x = x * kA + at::matmul(a * kB + at::matmul(a, a) * kC, x);
    }
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(direction.size(0), direction.size(1))));
    return (high ? x.t() : x) * scale;
  }

 private:
  std::unique_ptr<UpdateRule> rest_;
  double momentum_;
  std::int64_t steps_;
};

}  // namespace

std::unique_ptr<UpdateRule> muon_rule(const config::OptimizerConfig& optimizer) {
  return std::make_unique<Muon>(adam_rule(optimizer), optimizer.muon_momentum, optimizer.muon_num_ns_steps);
}

}  // namespace megatron::optim
