#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <vector>

namespace megatron::parallel {

/// The backward pass of one operator: gradients of its outputs (undefined where nothing flowed back) -> gradients of
/// its first inputs (undefined where none is needed). Parameters stand behind them and get none this way: the pass
/// writes their gradients into the buffers.
using Backward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& grad_outputs)>;

/// Tells autograd that `outputs`, computed by an operator of ours without autograd, depend on `inputs` (all defined),
/// and how to go back. The tensors returned share the memory of `outputs`. What `backward` captured is released as soon
/// as it has run; it runs at most once. Where gradients are off or no input needs one, `backward` is dropped at once
/// and with it all that it would have kept alive.
///
/// This is the one place that meets autograd's C++ interface: an operator is its forward lines and a closure.
std::vector<at::Tensor> with_backward(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                      Backward backward);
at::Tensor with_backward(const std::vector<at::Tensor>& inputs, const at::Tensor& output, Backward backward);

/// compute() with autograd off: an operator's forward lines.
template <class Compute>
auto without_autograd(const Compute& compute) {
  const c10::AutoGradMode off(false);
  return compute();
}

/// Whether `with_backward` would record: gradients are on and one of `inputs` needs one.
bool records_gradient(const std::vector<at::Tensor>& inputs);

}  // namespace megatron::parallel
