#include "megatron/parallel/backward.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace megatron::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kKey = "backward";

struct Held : torch::CustomClassHolder {
  explicit Held(Backward f) : backward(std::move(f)) {}
  Backward backward;
};

/// What the operator computed, in a type that autograd does not take for inputs.
struct Computed {
  std::vector<at::Tensor> outputs;
};

struct Recorded : torch::autograd::Function<Recorded> {
  // The parameters' types are prescribed: autograd finds the inputs among them.
  static variable_list forward(AutogradContext* ctx, const variable_list& inputs, Computed& computed,
                               Backward& backward) {
    (void)inputs;
    ctx->set_materialize_grads(false);
    ctx->saved_data[kKey] = at::IValue::make_capsule(c10::make_intrusive<Held>(std::move(backward)));
    return std::move(computed.outputs);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto found = ctx->saved_data.find(kKey);
    if (found == ctx->saved_data.end())
      throw std::logic_error("this part of the graph has gone backward already: its saved tensors are released");
    const Backward run = std::move(static_cast<Held&>(*found->second.toCapsule()).backward);
    ctx->saved_data.erase(found);
    auto gradients = run(grad_outputs);
    gradients.emplace_back();  // of `computed`
    gradients.emplace_back();  // of `backward`
    return gradients;
  }
};

}  // namespace

bool records_gradient(const std::vector<at::Tensor>& inputs) {
  return at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) {
           return x.defined() && x.requires_grad();
         });
}

std::vector<at::Tensor> with_backward(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                      Backward backward) {
  if (!records_gradient(inputs)) return outputs;
  Computed computed{std::move(outputs)};
  return Recorded::apply(inputs, computed, backward);
}

at::Tensor with_backward(const std::vector<at::Tensor>& inputs, const at::Tensor& output, Backward backward) {
  return with_backward(inputs, std::vector<at::Tensor>{output}, std::move(backward)).front();
}

}  // namespace megatron::parallel
