#include "megatron/parallel/adapter.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "megatron/kernels/low_rank/low_rank.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/parallel/backward.h"
#include "megatron/parallel/magnitude.h"
#include "megatron/parallel/sequence_rows.h"

namespace megatron::parallel {
namespace {

/// The outputs of a part among those of the layer, [s, b, groups, length]: a view.
at::Tensor outputs_of(const at::Tensor& y, const plan::ProjectionSlice& part) {
  auto shape = y.sizes().vec();
  shape.back() = part.groups;
  shape.push_back(part.group_outputs);
  return y.view(shape).narrow(-1, part.offset, part.length);
}

/// outputs_of(), one after the other: [s, b, groups * length], contiguous; maybe a view.
at::Tensor joined_outputs(const at::Tensor& y, const plan::ProjectionSlice& part) {
  auto shape = y.sizes().vec();
  shape.back() = part.outputs();
  return outputs_of(y, part).reshape(shape).contiguous();
}

/// What a part's outputs are multiplied by, [groups * length], in float32 or wider.
at::Tensor factor_of(const Adapter::Part& part, const at::Tensor& norms) {
  return magnitude_factor(part.magnitude->arrived().detach(), norms);
}

/// The values of a weight, also of one that is held in blocks.
at::Tensor values_of(const Parameter& weight) {
  const kernels::QuantizedMatrix* const blocks = weight.packed.quantized();
  return blocks == nullptr ? weight.arrived() : blocks->widened(at::kFloat);
}

/// x times a factor per output, rounded once.
at::Tensor scaled_outputs(const at::Tensor& x, const at::Tensor& factor) { return x.mul(factor).to(x.scalar_type()); }

}  // namespace

Adapter::Pass Adapter::pass(const Parameter& weight, const at::Tensor& samples, const comm::Group& inputs) const {
  Pass pass{.samples = samples};
  if (!has_magnitudes()) return pass;
  const at::Tensor values = values_of(weight);
  for (const Part& part : parts_)
    pass.norms.push_back(adapted_norms(values, part.outputs, part.a->arrived(), part.b->arrived(), scale_, inputs));
  return pass;
}

std::shared_ptr<const kernels::LowRank> Adapter::for_few_rows(const Pass& pass) const {
  std::vector<kernels::LowRank::Part> parts;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!kernels::takes_low_rank(part.a->value)) return nullptr;
    const plan::ProjectionSlice& outputs = part.outputs;
    parts.push_back({.a = part.a->arrived().detach(),
                     .b = part.b->arrived().detach(),
                     .factor = part.magnitude ? factor_of(part, pass.norms[i]) : at::Tensor(),
                     .groups = outputs.groups,
                     .group_outputs = outputs.group_outputs,
                     .offset = outputs.offset,
                     .length = outputs.length});
  }
  return std::make_shared<const kernels::LowRank>(parts, scale_);
}

Adapter::Matrices Adapter::matrices(const Pass& pass) const {
  if (parts_.size() != 1) throw std::logic_error("a layer of several parts has no adapter of all its outputs");
  const Part& part = parts_.front();
  return {.a = part.a->arrived().detach(),
          .b = part.b->arrived().detach(),
          .factor = part.magnitude ? factor_of(part, pass.norms.front()) : at::Tensor(),
          .scale = scale_};
}

at::Tensor Adapter::dropped(const Part& part, const at::Tensor& x, const Pass& pass) const {
  if (!drops(pass)) return x;
  kernels::Dropout dropout{.p = dropout_,
                           .key = part.dropout_key,
                           .sample_ids = pass.samples,
                           .features = features_,
                           .feature_offset = first_feature_};
  place_rows(dropout, share_, x.size(0));
  return kernels::dropout_backward(x, dropout);  // the mask times x, as times a gradient
}

void Adapter::add_to(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, const Pass& pass) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const at::Tensor in = dropped(part, x, pass), z = kernels::linear(in, part.a->arrived());
    const at::Tensor outputs = outputs_of(y, part.outputs);
    const at::Tensor added = kernels::linear(z, part.b->arrived()).view(outputs.sizes());
    if (!part.magnitude) {
      outputs.add_(added, scale_);
      continue;
    }
    const at::Tensor factor = factor_of(part, pass.norms[i]).view({part.outputs.groups, part.outputs.length});
    if (!drops(pass)) {
      outputs.add_(added, scale_).mul_(factor);
      continue;
    }
    const at::Tensor product =
        kernels::linear(in, rows_of(weight.arrived(), part.outputs)).view(outputs.sizes());  // W drop(x)
    outputs.add_(product.add(added, scale_).mul(factor).sub_(product));
  }
}

at::Tensor Adapter::through_weight(const at::Tensor& dy, const Pass& pass) const {
  if (!has_magnitudes() || drops(pass)) return dy;
  const at::Tensor scaled = dy.clone();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const plan::ProjectionSlice& outputs = parts_[i].outputs;
    outputs_of(scaled, outputs).mul_(factor_of(parts_[i], pass.norms[i]).view({outputs.groups, outputs.length}));
  }
  return scaled;
}

void Adapter::add_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Parameter& weight,
                                 const Pass& pass) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const at::Tensor dpart = joined_outputs(dy, part.outputs),
                     factor = part.magnitude ? factor_of(part, pass.norms[i]) : at::Tensor(),
                     scaled = part.magnitude ? scaled_outputs(dpart, factor) : dpart,
                     dz = kernels::linear_input_gradient(scaled, part.b->arrived()),
                     through_a = kernels::linear_input_gradient(dz, part.a->arrived());
    if (!part.magnitude || !drops(pass)) {
      dx.add_(dropped(part, through_a, pass), scale_);
      continue;
    }
    const at::Tensor through_w =  // (g - 1) W drop(x): g - 1 before anything is rounded
        kernels::linear_input_gradient(scaled_outputs(dpart, factor.sub(1)), rows_of(weight.arrived(), part.outputs));
    dx.add_(dropped(part, through_w.add_(through_a, scale_), pass));
  }
}

void Adapter::write_gradients(const at::Tensor& dy, const at::Tensor& x, Parameter& weight, const Pass& pass) const {
  without_autograd([&] {
    at::Tensor product;  // W x of all outputs, where most are adapted
    std::int64_t adapted = 0;
    for (const Part& part : parts_) adapted += part.outputs.outputs();
    if (has_magnitudes() && !drops(pass) && 2 * adapted > weight.arrived().size(0))
      product = kernels::linear(x, weight.arrived(), &weight.packed);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      at::Tensor dpart = joined_outputs(dy, part.outputs);
      const at::Tensor in = dropped(part, x, pass), z = kernels::linear(in, part.a->arrived()).mul_(scale_);
      if (part.magnitude) {
        const at::Tensor& norms = pass.norms[i];
        const at::Tensor own = product.defined() ? joined_outputs(product, part.outputs)
                                                 : kernels::linear(in, rows_of(weight.arrived(), part.outputs));
        const at::Tensor unscaled = own.add(kernels::linear(z, part.b->arrived())).to(norms.scalar_type());
        const at::Tensor dfactor = unscaled.mul_(dpart).view({-1, part.outputs.outputs()}).sum(0);
        Contribution(part.magnitude).write(magnitude_factor(dfactor, norms));
        dpart = scaled_outputs(dpart, factor_of(part, norms));
      }
      const at::Tensor dz = kernels::linear_input_gradient(dpart, part.b->arrived()).mul_(scale_);
      Contribution b(part.b);
      kernels::linear_weight_gradient(b.target(), dpart, z, b.beta());
      b.written();
      Contribution a(part.a);
      kernels::linear_weight_gradient(a.target(), dz, in, a.beta());
      a.written();
    }
  });
}

void Adapter::append_values(std::vector<at::Tensor>& inputs) const {
  for (const Part& part : parts_)
    for (const ParameterPtr& parameter : {part.a, part.b, part.magnitude})
      if (parameter) inputs.push_back(parameter->value);
}

}  // namespace megatron::parallel
