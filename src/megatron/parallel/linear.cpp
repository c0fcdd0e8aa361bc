#include "megatron/parallel/linear.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/comm/autograd.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"
#include "megatron/parallel/backward.h"

namespace megatron::parallel {
namespace {

/// What is sent around the product of a layer. The group of one sends nothing.
struct Links {
  comm::Group sum_y, sum_dx;  ///< all-reduce of y forward; of dx backward
  comm::Group gather_x;       ///< all-gather of x along the sequence forward; reduce-scatter of dx backward
  comm::Group scatter_y;      ///< reduce-scatter of y along the sequence forward; all-gather of dy backward
};

/// An all-gather along the sequence under way.
class Gathering {
 public:
  Gathering(const at::Tensor& part, const comm::Group& group) : whole_(part) {
    if (group.size() == 1) return;
    auto shape = part.sizes().vec();
    shape[0] *= group.size();
    whole_ = at::empty(shape, part.options());
    work_ = group.all_gather_async(whole_, part.contiguous());
  }
  const at::Tensor& wait() {
    if (work_) work_->wait();
    return whole_;
  }

 private:
  at::Tensor whole_;
  comm::WorkHandle work_;
};

/// The backward pass of one layer for one microbatch.
class LinearBackward {
 public:
  LinearBackward(const at::Tensor& x, ParameterPtr weight, ParameterPtr bias, Links links,
                 RecomputeFunction recompute_fn)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        links_(std::move(links)),
        kept_(recompute_fn ? at::Tensor() : x.detach()),
        recompute_fn_(std::move(recompute_fn)),
        needs_dx_(x.requires_grad()) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& grads) const {
    const at::Tensor dy_part = grads[0].contiguous();
    const at::Tensor dy = links_.scatter_y.all_gather(dy_part);
    const bool later = weight_->deferring();
    // The input comes while the product for dx is computed, and dx goes while that for the weight is.
    std::optional<Gathering> x;
    if (!later && links_.gather_x.size() > 1) x.emplace(input(), links_.gather_x);
    at::Tensor dx, dx_whole;
    comm::WorkHandle reduced;
    if (needs_dx_) {
      dx = dx_whole = kernels::linear_input_gradient(dy, weight_->value, &weight_->packed);
      reduced = reduce(dx_whole, dx);
    }
    if (later)
      weight_->contribute([self = *this, dy_part] {
        const at::Tensor all = self.links_.scatter_y.all_gather(dy_part);
        self.write_gradients(all, dy_part, Gathering(self.input(), self.links_.gather_x).wait());
      });
    else
      write_gradients(dy, dy_part, x ? x->wait() : input());
    if (reduced) reduced->wait();
    return {dx};
  }

 private:
  at::Tensor input() const { return recompute_fn_ ? recompute_fn_() : kept_; }

  /// Starts the sum of `dx_whole` over ranks: in place or, split along the sequence, into a new `dx`.
  comm::WorkHandle reduce(const at::Tensor& dx_whole, at::Tensor& dx) const {
    if (links_.gather_x.size() == 1) return links_.sum_dx.all_reduce_async(dx_whole);
    auto shape = dx_whole.sizes().vec();
    shape[0] /= links_.gather_x.size();
    dx = at::empty(shape, dx_whole.options());
    return links_.gather_x.reduce_scatter_async(dx, dx_whole);
  }

  /// The weight's gradient from all positions, that of a bias (where not null) from those it was added to here.
  void write_gradients(const at::Tensor& dy, const at::Tensor& dy_part, const at::Tensor& x) const {
    Contribution weight(weight_);
    kernels::linear_weight_gradient(weight.target(), dy, x, weight.beta());
    weight.written();
    if (!bias_) return;
    Contribution bias(bias_);
    kernels::accumulate_bias_gradient(bias.target(), dy_part, bias.beta());
    bias.written();
  }

  ParameterPtr weight_, bias_;
  Links links_;
  at::Tensor kept_;
  RecomputeFunction recompute_fn_;
  bool needs_dx_;
};

/// y = x W^T (+ b, added to the sum over ranks).
at::Tensor product(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias, const Links& links) {
  auto y = kernels::linear(links.gather_x.all_gather(x), weight->arrived(), &weight->packed);
  links.sum_y.all_reduce(y);
  y = links.scatter_y.reduce_scatter(y);
  if (bias) y.add_(bias->arrived());
  return y;
}

/// Tells autograd that y is the layer's value for x.
at::Tensor with_linear_backward(const at::Tensor& x, const at::Tensor& y, const ParameterPtr& weight,
                                const ParameterPtr& bias, const Links& links, RecomputeFunction recompute_fn) {
  std::vector<at::Tensor> inputs{x, weight->value};
  if (bias) inputs.push_back(bias->value);
  return with_backward(inputs, y, LinearBackward(x, weight, bias, links, std::move(recompute_fn)));
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)), options_(options) {}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, RecomputeFunction recompute_fn) const {
  Links links;
  (options_.sequence_parallel ? links.gather_x : links.sum_dx) = tp_;
  const ParameterPtr bias = options_.skip_bias_add ? nullptr : bias_;
  auto y = without_autograd([&] { return product(x, weight_, bias, links); });
  y = with_linear_backward(x, y, weight_, bias, links, std::move(recompute_fn));
  return options_.gather_output ? comm::gather_from_group(y, tp_, -1) : y;
}

RowParallelLinear::RowParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)), options_(options) {
  if (options_.sequence_parallel && !options_.input_is_parallel)
    throw std::invalid_argument("RowParallelLinear: with sequence_parallel the input is split by features already");
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, RecomputeFunction recompute_fn, Value value) const {
  const auto part = options_.input_is_parallel ? x : comm::scatter_to_group(x, tp_, -1).contiguous();
  Links links;
  (options_.sequence_parallel ? links.scatter_y : links.sum_y) = tp_;
  const ParameterPtr bias = options_.skip_bias_add ? nullptr : bias_;
  const auto y = without_autograd([&] {
    if (value == Value::Needed) return product(part, weight_, bias, links);
    auto shape = part.sizes().vec();
    shape.front() /= links.scatter_y.size();
    shape.back() = weight_->value.size(0);
    return at::empty(shape, part.options());
  });
  return with_linear_backward(part, y, weight_, bias, links, std::move(recompute_fn));
}

}  // namespace megatron::parallel
