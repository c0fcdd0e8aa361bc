#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

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

/// Where a graph begins that is cut off from what came before it: the input of a pipeline stage or of a part that is
/// computed again. Unlike a leaf of autograd it does not hold the input's memory: only operators that keep it do.
class GraphLeaf {
 public:
  explicit GraphLeaf(const at::Tensor& data);

  /// `data`, to compute on; handed out once.
  at::Tensor take() { return std::move(value_); }
  /// Its gradient once the graph has gone backward, handed out once; undefined where none arrived.
  at::Tensor take_gradient() { return std::move(*gradient_); }

 private:
  at::Tensor value_;
  std::shared_ptr<at::Tensor> gradient_;
};

/// The way back from an output, without the output: its memory can go (a stage's output once it is sent) while the
/// graph waits for the gradient.
class GraphRoot {
 public:
  GraphRoot() = default;
  explicit GraphRoot(const at::Tensor& output);

  /// Goes backward from the output's gradient, once; then nothing of the graph is held any more. Throws
  /// std::logic_error where the output has no graph, or it has gone backward already.
  void backward(const at::Tensor& gradient);

 private:
  std::shared_ptr<torch::autograd::Node> function_;
  std::uint32_t output_nr_ = 0;
};

}  // namespace megatron::parallel
