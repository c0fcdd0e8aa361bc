#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "megatron/optim/update_rule.h"

namespace megatron::optim {
namespace {

struct Coefficients {
  double a, b, c;
};

/// Those of the steps of Newton and Schulz, one after the other; after the last they start over, or the last is kept.
struct CoefficientSet {
  std::vector<Coefficients> steps;
  bool keeps_last;

  const Coefficients& of(std::int64_t step) const {
    const auto count = static_cast<std::int64_t>(steps.size());
    return steps[static_cast<std::size_t>(keeps_last ? std::min(step, count - 1) : step % count)];
  }
};

const CoefficientSet& coefficients_of(const std::string& type) {
  static const std::map<std::string, CoefficientSet> sets = {
      // Jordan et al. 2024: every singular value ends near 1.
      {"simple", {{{3.4445, -4.7750, 2.0315}}, false}},
      {"quintic",
       {{{4.0848, -6.8946, 2.9270},
         {3.9505, -6.3029, 2.6377},
         {3.7418, -5.5913, 2.3037},
         {2.8769, -3.1427, 1.2046},
         {2.8366, -3.0525, 1.2012}},
        false}},
      // Amsel et al. 2025, with their safety factor of 1.01.
      {"polar_express",
       {{{8.2051, -22.9019, 16.4607},
         {4.0664, -2.8612, 0.5184},
         {3.9096, -2.8234, 0.5250},
         {3.2856, -2.4153, 0.4853},
         {2.2779, -1.6198, 0.3985},
         {1.8726, -1.2307, 0.3585},
         {1.8564, -1.2132, 0.3568},
         {1.8750, -1.2500, 0.3750}},
        true}},
      // Grishina et al. 2025.
      {"cans",
       {{{8.4703, -25.1081, 18.6293},
         {4.1828, -3.1087, 0.5806},
         {3.9619, -2.9541, 0.5630},
         {3.2866, -2.4647, 0.5074},
         {2.2737, -1.6447, 0.4162}},
        true}},
      {"aol",
       {{{4.0098, -7.0585, 2.4635}, {3.4585, -5.5479, 2.5959}, {2.7573, -3.2939, 1.4254}, {2.7215, -3.0494, 1.3169}},
        false}},
      {"deepseekv4",
       {{{3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {3.4445, -4.7750, 2.0315},
         {2.0, -1.5, 0.5},
         {2.0, -1.5, 0.5}},
        true}}};
  return sets.at(type);
}

/// Muon (Jordan et al. 2024): a matrix of a layer goes in the direction of its gradient's momentum made orthogonal, by
/// a factor of its shape; by default the root mean square that AdamW's updates have (Liu et al. 2025, equation 4), so
/// that both share a learning rate. Everything else by AdamW.
class Muon final : public UpdateRule {
 public:
  Muon(std::unique_ptr<UpdateRule> rest, const config::OptimizerConfig& optimizer)
      : rest_(std::move(rest)),
        optimizer_(optimizer),
        coefficients_(coefficients_of(optimizer.muon_coefficient_type)) {}

  void apply(const Views& views, const kernels::Update& update) const override { rest_->apply(views, update); }
  bool takes_matrices() const override { return true; }

  /// Nesterov's: gradient + momentum x (momentum x state + gradient). Its length does not matter.
  at::Tensor direction(const Views& views, const kernels::Update& update) const override {
    const at::Tensor wide = views.gradient.to(views.weight.scalar_type());
    const at::Tensor gradient = update.factor.defined() ? wide * update.factor : wide * update.grad_scale;
    const at::Tensor& kept = views.state[0];
    const at::Tensor momentum = kept.to(gradient.scalar_type()) * optimizer_.muon_momentum + gradient;
    kept.copy_(update.factor.defined() ? at::where(update.factor.isnan(), kept, momentum.to(kept.scalar_type()))
                                       : momentum);
    return optimizer_.muon_nesterov ? gradient + momentum * optimizer_.muon_momentum : momentum;
  }

  at::Tensor matrix_update(const at::Tensor& direction) const override {
    const bool high = direction.size(0) > direction.size(1);
    at::Tensor x = high ? direction.t() : direction;
    x = x / x.norm().clamp_min(1e-15);
    for (std::int64_t i = 0; i < optimizer_.muon_num_ns_steps; ++i) {
      const Coefficients& step = coefficients_.of(i);
      const at::Tensor a = at::matmul(x, x.t());
      x = x * step.a + at::matmul(a * step.b + at::matmul(a, a) * step.c, x);
    }
    return (high ? x.t() : x) * (optimizer_.muon_extra_scale_factor * scale(direction.size(0), direction.size(1)));
  }

 private:
  double scale(std::int64_t rows, std::int64_t columns) const {
    if (optimizer_.muon_scale_mode == "spectral") return std::sqrt(static_cast<double>(std::max(rows, columns)));
    const double ratio = static_cast<double>(rows) / static_cast<double>(columns);
    return std::sqrt(optimizer_.muon_scale_mode == "unit_rms_norm" ? ratio : std::max(1.0, ratio));
  }

  std::unique_ptr<UpdateRule> rest_;
  config::OptimizerConfig optimizer_;
  const CoefficientSet& coefficients_;
};

}  // namespace

std::unique_ptr<UpdateRule> muon_rule(const config::OptimizerConfig& optimizer) {
  return std::make_unique<Muon>(adam_rule(optimizer), optimizer);
}

}  // namespace megatron::optim
