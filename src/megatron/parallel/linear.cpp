#include "megatron/parallel/linear.h"

#include <utility>
#include <vector>

#include "megatron/comm/autograd.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"
#include "megatron/parallel/backward.h"

namespace megatron::parallel {
namespace {

/// Writes the gradients of weight and (where not null) bias.
void write_gradients(const ParameterPtr& weight, const ParameterPtr& bias, const at::Tensor& dy, const at::Tensor& x) {
  kernels::linear_weight_gradient(weight->grad, dy, x, weight->beta());
  weight->gradient_written();
  if (!bias) return;
  kernels::accumulate_bias_gradient(bias->grad, dy, bias->beta());
  bias->gradient_written();
}

/// y = x W^T (+ b). `sum_y`: group over which y is summed, before the bias; `sum_dx`: over which dx is.
at::Tensor linear(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias, const comm::Group& sum_y,
                  const comm::Group& sum_dx, Remake remake) {
  const auto y = without_autograd([&] {
    auto product = kernels::linear(x, weight->value);
    sum_y.all_reduce(product);
    if (bias) product.add_(bias->value);
    return product;
  });
  auto backward = [kept = remake ? at::Tensor() : x.detach(), remake = std::move(remake), weight, bias, sum_dx,
                   needs_dx = x.requires_grad()](const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> {
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx;
    comm::WorkHandle reduced;
    if (needs_dx) {
      dx = kernels::linear_input_gradient(dy, weight->value);
      reduced = sum_dx.all_reduce_async(dx);  // may go on while the weight gradient is computed
    }
    write_gradients(weight, bias, dy, remake ? remake() : kept);
    if (reduced) reduced->wait();
    return {dx};
  };
  std::vector<at::Tensor> inputs{x, weight->value};
  if (bias) inputs.push_back(bias->value);
  return with_backward(inputs, y, std::move(backward));
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)), options_(options) {}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, Remake remake) const {
  const auto y = linear(x, weight_, options_.skip_bias_add ? nullptr : bias_, {}, tp_, std::move(remake));
  return options_.gather_output ? comm::gather_from_group(y, tp_, -1) : y;
}

RowParallelLinear::RowParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)), options_(options) {}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, Remake remake) const {
  const auto part = options_.input_is_parallel ? x : comm::scatter_to_group(x, tp_, -1).contiguous();
  return linear(part, weight_, options_.skip_bias_add ? nullptr : bias_, tp_, {}, std::move(remake));
}

}  // namespace megatron::parallel
