#include "megatron/parallel/backward.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace megatron::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kKey = "backward";

struct Held : torch::CustomClassHolder {
  Held(Backward f, std::size_t inputs) : backward(std::move(f)), num_inputs(inputs) {}
  Backward backward;
  std::size_t num_inputs;
};

/// What the operator computed, in a type that autograd does not take for inputs.
struct Computed {
  std::vector<at::Tensor> outputs;
};

struct Recorded : torch::autograd::Function<Recorded> {
  // Autograd finds its inputs among the parameters by their type: a list of tensors is one, a vector is not.
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, Computed& computed, Backward& backward) {
    ctx->set_materialize_grads(false);
    ctx->saved_data[kKey] = at::IValue::make_capsule(c10::make_intrusive<Held>(std::move(backward), inputs.size()));
    return std::move(computed.outputs);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto found = ctx->saved_data.find(kKey);
    if (found == ctx->saved_data.end())
      throw std::logic_error("this part of the graph has gone backward already: its saved tensors are released");
    const auto held = found->second.toCapsule();
    ctx->saved_data.erase(found);
    auto gradients = static_cast<Held&>(*held).backward(grad_outputs);
    gradients.resize(static_cast<Held&>(*held).num_inputs + 2);  // and none for `computed` and `backward`
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
  // A fresh handle to the same memory each: autograd refuses to continue from views whose base an operator overwrites.
  for (at::Tensor& output : outputs) output = output.variable_data();
  Computed computed{std::move(outputs)};
  return Recorded::apply(at::TensorList(inputs), computed, backward);
}

at::Tensor with_backward(const std::vector<at::Tensor>& inputs, const at::Tensor& output, Backward backward) {
  return with_backward(inputs, std::vector<at::Tensor>{output}, std::move(backward)).front();
}

GraphLeaf::GraphLeaf(const at::Tensor& data) : gradient_(std::make_shared<at::Tensor>()) {
  // The leaf that autograd asks for is one without elements; the gradient stops in the operator above it.
  const auto source = at::empty({0}, data.options()).requires_grad_(true);
  value_ = with_backward({source}, data.detach(),
                         [slot = gradient_](const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> {
                           *slot = grads[0];
                           return {};
                         });
}

GraphRoot::GraphRoot(const at::Tensor& output) {
  if (!output.requires_grad()) return;
  auto edge = torch::autograd::impl::gradient_edge(output);
  function_ = std::move(edge.function);
  output_nr_ = edge.input_nr;
}

void GraphRoot::backward(const at::Tensor& gradient) {
  const auto function = std::exchange(function_, nullptr);
  if (!function) throw std::logic_error("this output has no graph, or it has gone backward already");
  torch::autograd::Engine::get_default_engine().execute({{function, output_nr_}}, {gradient}, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace megatron::parallel
