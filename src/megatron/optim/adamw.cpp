#include <ATen/ops/zeros_like.h>

#include "megatron/kernels/optimizer.h"
#include "megatron/optim/optimizer.h"

namespace megatron::optim {

AdamW::AdamW(const parallel::ParameterStore& parameters, AdamWOptions options)
    : parameters_(parameters),
      options_(options),
      exp_avg_(at::zeros_like(parameters.values())),
      exp_avg_sq_(at::zeros_like(parameters.values())) {
  // Neighbours of equal decay form one range. Padding between them holds zeros, which stay zeros.
  for (const auto& slot : parameters.layout().slots) {
    const auto& spec = parameters.all().at(static_cast<std::size_t>(slot.parameter))->spec;
    const double decay = spec.weight_decay ? options_.weight_decay : 0.0;
    if (!ranges_.empty() && ranges_.back().weight_decay == decay)
      ranges_.back().end = slot.end;
    else
      ranges_.push_back({.begin = slot.begin, .end = slot.end, .weight_decay = decay});
  }
}

void AdamW::step(double learning_rate, double grad_scale) {
  ++steps_;
  for (const Range& range : ranges_) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, range.begin, range.end - range.begin); };
    kernels::adam_(part(parameters_.values()), {}, part(parameters_.gradients()), part(exp_avg_), part(exp_avg_sq_),
                   {.beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps},
                   {.learning_rate = learning_rate,
                    .weight_decay = range.weight_decay,
                    .grad_scale = grad_scale,
                    .step = steps_});
  }
}

}  // namespace megatron::optim
