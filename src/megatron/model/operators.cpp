#include "megatron/model/operators.h"

#include <ATen/ops/empty_like.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/kernels/normalization.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {
namespace {

using parallel::with_backward;
using parallel::without_autograd;
using Gradients = std::vector<at::Tensor>;

/// Gradient of the stream x before a norm, from those of its two continuations {residual, y}; writes the norm's own.
at::Tensor norm_backward(const Norm& norm, const Gradients& grads, const at::Tensor& x, const at::Tensor& mean,
                         const at::Tensor& rstd) {
  const auto past = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
  auto dx = kernels::layer_norm_backward(grads[1].contiguous(), x, mean, rstd, norm.weight->value, norm.weight->grad,
                                         norm.bias->grad, norm.weight->beta(), past);
  norm.weight->gradient_written();
  norm.bias->gradient_written();
  return dx;
}

/// Gradients of x and residual from that of residual + dropout(x + bias); writes the bias's.
Gradients residual_backward(const at::Tensor& dsum, const parallel::ParameterPtr& bias,
                            const kernels::Dropout& dropout) {
  const auto dx = kernels::dropout_backward(dsum, dropout);
  kernels::accumulate_bias_gradient(bias->grad, dx, bias->beta());
  bias->gradient_written();
  return {dx, dsum};
}

parallel::Remake remake_norm(const at::Tensor& x, const Norm& norm) {
  return [x, norm] { return kernels::layer_norm(x, norm.weight->value, norm.bias->value, norm.epsilon).y; };
}

/// A value that is made when it is first asked for in the backward pass. It lives as long as those who may ask: a
/// weight gradient that is put off does not make it twice.
template <class T>
class MadeAgain {
 public:
  explicit MadeAgain(std::function<T()> make) : make_(std::move(make)) {}
  T& value() {
    if (!value_) value_ = without_autograd(std::exchange(make_, nullptr));
    return *value_;
  }

 private:
  std::function<T()> make_;
  std::optional<T> value_;
};

struct Heads {
  at::Tensor q, k, v;  ///< views [s, b, n, d]
};

Heads heads_of(const at::Tensor& qkv, std::int64_t head_size) {
  const auto split = qkv.view({qkv.size(0), qkv.size(1), -1, 3, head_size});
  return {split.select(3, 0), split.select(3, 1), split.select(3, 2)};
}

}  // namespace

Normed layer_norm(const at::Tensor& x_sbh, const Norm& norm) {
  const auto x = x_sbh.detach();
  const auto out =
      without_autograd([&] { return kernels::layer_norm(x, norm.weight->value, norm.bias->value, norm.epsilon); });
  auto backward = [x, norm, mean = out.mean, rstd = out.rstd](const Gradients& grads) -> Gradients {
    return {norm_backward(norm, grads, x, mean, rstd)};
  };
  const auto outputs =
      with_backward({x_sbh, norm.weight->value, norm.bias->value}, {x.detach(), out.y}, std::move(backward));
  return {outputs[0], outputs[1], remake_norm(x, norm)};
}

Normed add_norm(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias, const at::Tensor& residual_sbh,
                const kernels::Dropout& dropout, const Norm& norm) {
  const auto out = without_autograd([&] {
    return kernels::bias_dropout_add_norm(x_sbh.detach(), bias->value, residual_sbh, dropout, norm.weight->value,
                                          norm.bias->value, norm.epsilon);
  });
  const auto sum = out.sum.detach();
  auto backward = [sum, bias, dropout, norm, mean = out.mean, rstd = out.rstd](const Gradients& grads) -> Gradients {
    const auto dresidual = norm_backward(norm, grads, sum, mean, rstd);
    return residual_backward(dresidual, bias, dropout);
  };
  const auto outputs = with_backward({x_sbh, residual_sbh, bias->value, norm.weight->value, norm.bias->value},
                                     {out.sum, out.y}, std::move(backward));
  return {outputs[0], outputs[1], remake_norm(sum, norm)};
}

at::Tensor add_residual(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias, const at::Tensor& residual_sbh,
                        const kernels::Dropout& dropout, parallel::Value value) {
  const auto sum = without_autograd([&] {
    if (value == parallel::Value::Unread) return x_sbh.detach();
    return kernels::bias_dropout_add(x_sbh.detach(), bias->value, residual_sbh, dropout);
  });
  auto backward = [bias, dropout](const Gradients& grads) -> Gradients {
    return residual_backward(grads[0].contiguous(), bias, dropout);
  };
  return with_backward({x_sbh, residual_sbh, bias->value}, sum, std::move(backward));
}

Remakeable bias_activation(const at::Tensor& x_sbf, const parallel::ParameterPtr& bias, kernels::Activation form,
                           const parallel::Remake& x_again) {
  struct Made {
    at::Tensor u, y;  // x + bias, gelu of that
  };
  const auto activate = [bias, form](const at::Tensor& x) {
    return Made{x, kernels::bias_activation(x, bias->value, form)};  // x becomes u
  };
  const auto made = without_autograd([&] { return activate(x_sbf.detach()); });
  std::function<at::Tensor()> u = [kept = made.u] { return kept; };
  parallel::Remake y = [kept = made.u, form] { return kernels::activation(kept, form); };
  if (x_again) {
    const auto again = std::make_shared<MadeAgain<Made>>([=] { return activate(x_again()); });
    u = [again] { return std::move(again->value().u); };
    y = [again] { return std::move(again->value().y); };
  }
  auto backward = [u = std::move(u), bias, form](const Gradients& grads) -> Gradients {
    auto dx = kernels::activation_backward(grads[0].contiguous(), u(), form);
    kernels::accumulate_bias_gradient(bias->grad, dx, bias->beta());
    bias->gradient_written();
    return {dx};
  };
  return {with_backward({x_sbf, bias->value}, made.y, std::move(backward)), std::move(y)};
}

Remakeable self_attention(const at::Tensor& qkv, std::int64_t head_size, const kernels::AttentionOptions& options,
                          bool again) {
  const auto kept = qkv.detach();
  const auto attend = [kept, head_size, options] {
    const auto [q, k, v] = heads_of(kept, head_size);
    return kernels::attention(q, k, v, options);
  };
  const std::vector<std::int64_t> shape{qkv.size(0), qkv.size(1), qkv.size(2) / 3};
  const auto made = without_autograd(attend);
  std::function<kernels::AttentionOutput()> forward =
      [out = kernels::AttentionOutput{made.out.detach(), made.logsumexp}] { return out; };
  parallel::Remake remake;
  if (again) {
    const auto remade = std::make_shared<MadeAgain<kernels::AttentionOutput>>(attend);
    forward = [remade] { return remade->value(); };
    remake = [remade, shape] { return remade->value().out.view(shape); };
  }
  auto backward = [kept, head_size, options, forward = std::move(forward)](const Gradients& grads) -> Gradients {
    const auto out = forward();
    const auto [q, k, v] = heads_of(kept, head_size);
    const auto dqkv = at::empty_like(kept);
    const auto [dq, dk, dv] = heads_of(dqkv, head_size);
    kernels::attention_backward(grads[0].contiguous().view(out.out.sizes()), q, k, v, out, options, dq, dk, dv);
    return {dqkv};
  };
  return {with_backward({qkv}, made.out.view(shape), std::move(backward)), std::move(remake)};
}

at::Tensor dropout(const at::Tensor& x_sbh, const kernels::Dropout& options) {
  if (options.p == 0) return x_sbh;
  // The mask times the gradient is the mask times the value: one kernel is both directions.
  const auto y = without_autograd([&] { return kernels::dropout_backward(x_sbh.detach(), options); });
  return with_backward({x_sbh}, y, [options](const Gradients& grads) -> Gradients {
    return {kernels::dropout_backward(grads[0].contiguous(), options)};
  });
}

}  // namespace megatron::model
