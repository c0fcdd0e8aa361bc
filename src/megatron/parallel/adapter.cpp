#include "megatron/parallel/adapter.h"

#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"

namespace megatron::parallel {
namespace {

/// The outputs of a part among those of the layer, [s, b, groups, length]: a view.
at::Tensor outputs_of(const at::Tensor& y, const plan::LinearPart& part) {
  auto shape = y.sizes().vec();
  shape.back() = part.groups;
  shape.push_back(part.group_outputs);
  return y.view(shape).narrow(-1, part.offset, part.length);
}

/// The gradient of a part's outputs, [s, b, groups * length], contiguous.
at::Tensor gradient_of(const at::Tensor& dy, const plan::LinearPart& part) {
  auto shape = dy.sizes().vec();
  shape.back() = part.outputs();
  return outputs_of(dy, part).reshape(shape).contiguous();
}

}  // namespace

at::Tensor Adapter::dropped(const Part& part, const at::Tensor& x, const at::Tensor& samples) const {
  if (dropout_ == 0 || !samples.defined()) return x;
  return kernels::dropout_backward(x, {.p = dropout_,
                                       .key = part.dropout_key,
                                       .sample_ids = samples,
                                       .features = features_,
                                       .feature_offset = first_feature_});  // the mask times x, as times a gradient
}

void Adapter::add_to(const at::Tensor& y, const at::Tensor& x, const at::Tensor& samples) const {
  for (const Part& part : parts_) {
    const at::Tensor z = kernels::linear(dropped(part, x, samples), part.a->arrived());
    const at::Tensor outputs = outputs_of(y, part.outputs);
    outputs.add_(kernels::linear(z, part.b->arrived()).view(outputs.sizes()), scale_);
  }
}

void Adapter::add_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& samples) const {
  for (const Part& part : parts_) {
    const at::Tensor dz = kernels::linear_input_gradient(gradient_of(dy, part.outputs), part.b->value);
    dx.add_(dropped(part, kernels::linear_input_gradient(dz, part.a->value), samples), scale_);
  }
}

void Adapter::write_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& samples) const {
  for (const Part& part : parts_) {
    const at::Tensor dpart = gradient_of(dy, part.outputs), in = dropped(part, x, samples);
    const at::Tensor z = kernels::linear(in, part.a->value).mul_(scale_),
                     dz = kernels::linear_input_gradient(dpart, part.b->value).mul_(scale_);
    Contribution b(part.b);
    kernels::linear_weight_gradient(b.target(), dpart, z, b.beta());
    b.written();
    Contribution a(part.a);
    kernels::linear_weight_gradient(a.target(), dz, in, a.beta());
    a.written();
  }
}

void Adapter::append_values(std::vector<at::Tensor>& inputs) const {
  for (const Part& part : parts_) {
    inputs.push_back(part.a->value);
    inputs.push_back(part.b->value);
  }
}

}  // namespace megatron::parallel
