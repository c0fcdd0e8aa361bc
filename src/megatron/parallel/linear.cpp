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
#include "megatron/parallel/fp8.h"

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

at::Tensor dropped(const at::Tensor& x, const kernels::Dropout& dropout) {
  return dropout.p > 0 ? kernels::dropout_backward(x, dropout) : x;  // the mask times x, as times a gradient
}

/// y of u again.
at::Tensor activate(const at::Tensor& u, const InnerActivation& inner) {
  return dropped(inner.gated ? kernels::gated_activation(u, inner.form) : kernels::activation(u, inner.form),
                 inner.dropout);
}

/// A layer's products with its weight.
struct Products {
  ParameterPtr weight;
  std::shared_ptr<Fp8Pass> fp8;  ///< null: in the weight's type

  Products(const ParameterPtr& of, const Fp8ProductsPtr& in_8_bits)
      : weight(of), fp8(in_8_bits ? std::make_shared<Fp8Pass>(in_8_bits) : nullptr) {}

  /// x W^T, plus `bias` where it is defined.
  at::Tensor output(const at::Tensor& x, const at::Tensor& bias) const {
    if (fp8) return fp8->output(x, weight->arrived(), bias);
    return kernels::linear(x, weight->arrived(), &weight->packed, bias);
  }
  at::Tensor input_gradient(const at::Tensor& dy) const {
    if (fp8) return fp8->input_gradient(dy, weight->arrived());
    return kernels::linear_input_gradient(dy, weight->arrived(), &weight->packed);
  }
  /// `bias`: contributed to as well.
  void gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                 const Contribution& bias) const {
    kernels::linear_gradients(grad_w, dy, x, beta, bias.target(), bias.beta());
  }
  void weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) const {
    if (fp8) return fp8->weight_gradient(grad_w, dy, x, beta);
    kernels::linear_weight_gradient(grad_w, dy, x, beta);
  }
};

/// What a layer multiplies, in its backward pass; and what an activation made it of.
struct InputAgain {
  RecomputeFunction x_fn;
  bool beside_gradient = false;  ///< x may come with the gradient of u instead
  InnerActivation inner = {};
  RecomputeFunction u_fn = {};  ///< null: x is no activation
};

/// The backward pass of one layer for one microbatch.
class LinearBackward {
 public:
  /// `bias_at_once`: the bias's gradient does not wait with a weight's that is put off.
  LinearBackward(bool needs_dx, Products products, ParameterPtr bias, Adaptation adaptation, Links links,
                 InputAgain input, bool bias_at_once)
      : products_(std::move(products)),
        weight_(products_.weight),
        bias_(std::move(bias)),
        adaptation_(std::move(adaptation)),
        links_(std::move(links)),
        input_(std::move(input)),
        needs_dx_(needs_dx),
        bias_at_once_(bias_at_once) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& grads) const {
    const at::Tensor dy_part = grads[0].contiguous();
    const at::Tensor dy = links_.scatter_y.all_gather(dy_part);
    const bool reads_x = !weight_->frozen() || adaptation_.adapter;
    const bool later = adaptation_.adapter ? adaptation_.adapter->deferring() : weight_->deferring();
    if (products_.fp8) products_.fp8->see_gradient(dy, needs_dx_, !later && !weight_->frozen());
    // The input comes while the product for dx is computed, and dx goes while that for the weight is.
    std::optional<Gathering> gathered;
    if (reads_x && !later && links_.gather_x.size() > 1) gathered.emplace(input_.x_fn(), links_.gather_x);
    at::Tensor dx, dx_whole, x;
    comm::WorkHandle reduced;
    if (needs_dx_) {
      dx = dx_whole = input_gradient(dy, later, x);
      reduced = reduce(dx_whole, dx);
    }
    const bool at_once = bias_at_once_ && (later || !beside_weight(dy, dy_part));
    if (at_once) write_bias_gradient(dy_part, Contribution::When::WithTheRest);
    if (!reads_x) {
      if (!bias_at_once_) write_bias_gradient(dy_part, Contribution::When::Now);
    } else if (later) {
      contribute([self = for_later(), dy_part] {
        const at::Tensor all = self.links_.scatter_y.all_gather(dy_part);
        self.write_gradients(all, dy_part, Gathering(self.input_.x_fn(), self.links_.gather_x).wait(),
                             !self.bias_at_once_);
      });
    } else {
      write_gradients(dy, dy_part, gathered ? gathered->wait() : x.defined() ? x : input_.x_fn(), !at_once);
    }
    if (reduced) reduced->wait();
    return {dx};
  }

 private:
  /// The gradient of what autograd knows as the input: of u where x is an activation. With it comes x, where it is
  /// wanted now and not kept.
  at::Tensor input_gradient(const at::Tensor& dy, bool later, at::Tensor& x) const {
    const at::Tensor& w = weight_->arrived();
    const AdapterPtr& adapter = adaptation_.adapter;
    const auto product = [&] {
      const at::Tensor own = adapter ? adapter->through_weight(dy, adaptation_.pass) : dy;
      at::Tensor dx = products_.input_gradient(own);
      if (adapter) adapter->add_input_gradient(dx, dy, *weight_, adaptation_.pass);
      return dx;
    };
    if (!input_.u_fn) return product();
    const auto& [form, gated, dropout] = input_.inner;
    const at::Tensor u = input_.u_fn();
    if (dropout.p > 0 || adapter || products_.fp8) {
      const at::Tensor d = dropped(product(), dropout);
      return gated ? kernels::gated_activation_backward(d, u, form) : kernels::activation_backward(d, u, form);
    }
    const bool again = !later && input_.beside_gradient && !weight_->frozen();
    const kernels::ActivatedOutput out =
        kernels::linear_activation_gradient(dy, w, u, form, gated, again, &weight_->packed);
    x = out.y;
    return out.u;
  }

  /// Starts the sum of `dx_whole` over ranks: in place or, split along the sequence, into a new `dx`.
  comm::WorkHandle reduce(const at::Tensor& dx_whole, at::Tensor& dx) const {
    if (links_.gather_x.size() == 1) return links_.sum_dx.all_reduce_async(dx_whole);
    auto shape = dx_whole.sizes().vec();
    shape[0] /= links_.gather_x.size();
    dx = at::empty(shape, dx_whole.options());
    return links_.gather_x.reduce_scatter_async(dx, dx_whole);
  }

  void contribute(GradientQueue::Work write) const {
    if (adaptation_.adapter) return adaptation_.adapter->contribute(std::move(write));
    weight_->contribute(std::move(write));
  }

  /// Whether one operator writes the gradients of weight and bias.
  bool beside_weight(const at::Tensor& dy, const at::Tensor& dy_part) const {
    return bias_ && !bias_->frozen() && !weight_->frozen() && !products_.fp8 && dy.is_same(dy_part);
  }
  /// The weight's gradient from all positions, that of a bias (where not null) from those it was added to here.
  void write_gradients(const at::Tensor& dy, const at::Tensor& dy_part, const at::Tensor& x, bool with_bias) const {
    if (with_bias && beside_weight(dy, dy_part)) {
      Contribution weight(weight_), bias(bias_);
      products_.gradients(weight.target(), dy, x, weight.beta(), bias);
      weight.written();
      bias.written();
      with_bias = false;
    } else if (!weight_->frozen()) {
      Contribution weight(weight_);
      products_.weight_gradient(weight.target(), dy, x, weight.beta());
      weight.written();
    }
    if (adaptation_.adapter) adaptation_.adapter->write_gradients(dy, x, *weight_, adaptation_.pass);
    if (with_bias) write_bias_gradient(dy_part, Contribution::When::Now);
  }
  void write_bias_gradient(const at::Tensor& dy_part, Contribution::When when) const {
    if (!bias_ || bias_->frozen()) return;
    Contribution bias(bias_, when);
    kernels::accumulate_bias_gradient(bias.target(), dy_part, bias.beta());
    bias.written();
  }
  /// What the weight's gradient needs: no u that is kept beside x.
  LinearBackward for_later() const {
    LinearBackward rest = *this;
    rest.input_.u_fn = nullptr;
    return rest;
  }

  Products products_;
  ParameterPtr weight_, bias_;
  Adaptation adaptation_;
  Links links_;
  InputAgain input_;
  bool needs_dx_, bias_at_once_;
};

/// The adapters in a new pass. `inputs`: the ranks that have the weight's other columns.
Adaptation adaptation_of(const AdapterPtr& adapter, const KeptAdaptersPtr& kept, const ParameterPtr& weight,
                         const at::Tensor& samples, const comm::Group& inputs) {
  const KeptAdaptersPtr chosen = kept && kept->chosen() ? kept : nullptr;
  if (!adapter) return {.kept = chosen};
  return {adapter, adapter->pass(*weight, samples, inputs), chosen};
}

/// y = x W^T (+ b, added to what adapters make of it, and to the sum over ranks).
at::Tensor product(const at::Tensor& x, const Products& products, const ParameterPtr& bias,
                   const Adaptation& adaptation, const Links& links) {
  const at::Tensor b = bias ? bias->arrived() : at::Tensor(), whole = links.gather_x.all_gather(x);
  const bool later = links.sum_y.size() > 1 || links.scatter_y.size() > 1 ||
                     (adaptation.adapter && adaptation.adapter->has_magnitudes()) || adaptation.kept;
  auto y = products.output(whole, later ? at::Tensor() : b);
  if (adaptation.adapter) adaptation.adapter->add_to(y, whole, *products.weight, adaptation.pass);
  if (adaptation.kept) adaptation.kept->add_to(y, whole);
  links.sum_y.all_reduce(y);
  y = links.scatter_y.reduce_scatter(y);
  return later && bias ? y.add_(b) : y;
}

/// Tells autograd that y is the layer's value for x.
at::Tensor with_linear_backward(const at::Tensor& x, const at::Tensor& y, const Products& products,
                                const ParameterPtr& bias, const Adaptation& adaptation, const Links& links,
                                InputAgain input, bool bias_at_once = false) {
  std::vector<at::Tensor> inputs{x, products.weight->value};
  if (bias) inputs.push_back(bias->value);
  if (adaptation.adapter) adaptation.adapter->append_values(inputs);
  if (products.weight->frozen() && !adaptation.adapter) input.x_fn = nullptr;  // and what it holds goes
  return with_backward(
      inputs, y, LinearBackward(x.requires_grad(), products, bias, adaptation, links, std::move(input), bias_at_once));
}

/// The input as it is kept, unless it is made again.
InputAgain kept_or(const at::Tensor& x, RecomputeFunction recompute_fn) {
  if (recompute_fn) return {std::move(recompute_fn)};
  return {[kept = x.detach()] { return kept; }};
}

InputAgain activated_input(const Activated& x, const InnerActivation& inner, const ActivatedAgain& again) {
  const RecomputeFunction u_fn = again.u_fn ? again.u_fn : [u = x.u.detach()] { return u; };
  if (again.y_fn) return {again.y_fn, false, inner, u_fn};
  return {[u_fn, inner] { return activate(u_fn(), inner); }, true, inner, u_fn};
}

/// A row-parallel layer's value, or memory of its shape.
at::Tensor row_product(const at::Tensor& x, const Products& products, const ParameterPtr& bias,
                       const Adaptation& adaptation, const Links& links, Value value) {
  return without_autograd([&] {
    if (value == Value::Needed) return product(x, products, bias, adaptation, links);
    auto shape = x.sizes().vec();
    shape.front() /= links.scatter_y.size();
    shape.back() = products.weight->value.size(0);
    return at::empty(shape, x.options());
  });
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)), options_(options) {}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, RecomputeFunction recompute_fn,
                                         const at::Tensor& samples) const {
  Links links;
  (options_.sequence_parallel ? links.gather_x : links.sum_dx) = tp_;
  const ParameterPtr bias = options_.skip_bias_add ? nullptr : bias_;
  const Adaptation adaptation = adaptation_of(adapter_, kept_, weight_, samples, comm::Group());
  const Products products{weight_, fp8_};
  auto y = without_autograd([&] { return product(x, products, bias, adaptation, links); });
  y = with_linear_backward(x, y, products, bias, adaptation, links, kept_or(x, std::move(recompute_fn)));
  return options_.gather_output ? comm::gather_from_group(y, tp_, -1) : y;
}

Activated ColumnParallelLinear::forward(const at::Tensor& x, const InnerActivation& inner,
                                        RecomputeFunction recompute_fn, const at::Tensor& samples) const {
  Links links;
  (options_.sequence_parallel ? links.gather_x : links.sum_dx) = tp_;
  const Adaptation adaptation = adaptation_of(adapter_, kept_, weight_, samples, comm::Group());
  const Products products{weight_, fp8_};
  const auto out = without_autograd([&]() -> kernels::ActivatedOutput {
    if (adapter_ || fp8_) {
      const at::Tensor u = product(x, products, bias_, adaptation, links);
      return {u, activate(u, inner)};
    }
    const at::Tensor bias = bias_ ? bias_->arrived() : at::Tensor();
    if (adaptation.kept) {  // sums and roundings are those of the product below for few rows
      const at::Tensor u = product(x, products, nullptr, adaptation, links);
      return {u, inner.gated ? kernels::bias_gated_activation(u, bias, inner.form)
                             : kernels::bias_activation(u, bias, inner.form)};
    }
    auto both = kernels::linear_activation(links.gather_x.all_gather(x), weight_->arrived(), bias, inner.form,
                                           inner.gated, &weight_->packed);
    both.y = dropped(both.y, inner.dropout);
    return both;
  });
  return {with_linear_backward(x, out.u, products, bias_, adaptation, links, kept_or(x, std::move(recompute_fn)), true),
          out.y};
}

RowParallelLinear::RowParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)), options_(options) {
  if (options_.sequence_parallel && !options_.input_is_parallel)
    throw std::invalid_argument("RowParallelLinear: with sequence_parallel the input is split by features already");
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, RecomputeFunction recompute_fn, Value value,
                                      const at::Tensor& samples) const {
  const auto part = options_.input_is_parallel ? x : comm::scatter_to_group(x, tp_, -1).contiguous();
  Links links;
  (options_.sequence_parallel ? links.scatter_y : links.sum_y) = tp_;
  const ParameterPtr bias = options_.skip_bias_add ? nullptr : bias_;
  const Adaptation adaptation = adaptation_of(adapter_, kept_, weight_, samples, tp_);
  const Products products{weight_, fp8_};
  const auto y = row_product(part, products, bias, adaptation, links, value);
  return with_linear_backward(part, y, products, bias, adaptation, links, kept_or(part, std::move(recompute_fn)));
}

at::Tensor RowParallelLinear::forward(const Activated& x, const InnerActivation& inner, const ActivatedAgain& again,
                                      Value value, const at::Tensor& samples) const {
  Links links;
  (options_.sequence_parallel ? links.scatter_y : links.sum_y) = tp_;
  const ParameterPtr bias = options_.skip_bias_add ? nullptr : bias_;
  const Adaptation adaptation = adaptation_of(adapter_, kept_, weight_, samples, tp_);
  const Products products{weight_, fp8_};
  const auto y = row_product(x.y, products, bias, adaptation, links, value);
  return with_linear_backward(x.u, y, products, bias, adaptation, links, activated_input(x, inner, again));
}

}  // namespace megatron::parallel
