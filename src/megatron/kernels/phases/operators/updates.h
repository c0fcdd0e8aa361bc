#pragma once
#include <algorithm>
#include <cmath>

#include "megatron/kernels/phases/operators/arguments.h"
#include "megatron/kernels/phases/optimizer.h"

namespace megatron::kernels::phases {

/// Optimizers over flat buffers, and what is reduced over them.
template <class Driver>
struct UpdateOperators {
  static void adam_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
                    const at::Tensor& exp_avg_sq, const Adam& adam, const Update& update) {
    if (!flat(param, model, grad, exp_avg, exp_avg_sq))
      return reference::adam_(param, model, grad, exp_avg, exp_avg_sq, adam, update);
    const double correction1 = 1 - std::pow(adam.beta1, static_cast<double>(update.step));
    const double correction2 = 1 - std::pow(adam.beta2, static_cast<double>(update.step));
    step(param, model, grad, exp_avg, exp_avg_sq, update, [&](auto& a) {
      using C = std::decay_t<decltype(a.rate)>;
      a.rule = Rule::Adam;
      set_betas(a, adam.beta1, adam.beta2);
      a.root_correction2 = static_cast<C>(1 / std::sqrt(correction2));
      a.eps = static_cast<C>(adam.eps);
      a.rate = static_cast<C>(update.learning_rate / correction1);
    });
  }
  static void sgd_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad,
                   const at::Tensor& momentum_buffer, double momentum, const Update& update) {
    if (!flat(param, model, grad, momentum_buffer))
      return reference::sgd_(param, model, grad, momentum_buffer, momentum, update);
    step(param, model, grad, momentum_buffer, {}, update, [&](auto& a) {
      a.rule = Rule::Sgd;
      set_betas(a, momentum, 0);
    });
  }
  static void lion_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
                    const Lion& lion, const Update& update) {
    if (!flat(param, model, grad, exp_avg)) return reference::lion_(param, model, grad, exp_avg, lion, update);
    step(param, model, grad, exp_avg, {}, update, [&](auto& a) {
      a.rule = Rule::Lion;
      set_betas(a, lion.beta1, lion.beta2);
    });
  }
  static void round_(const at::Tensor& model, const at::Tensor& param, const Update& update) {
    if (!flat(param, model)) return reference::round_(model, param, update);
    step(param, model, {}, {}, {}, update, [](auto& a) { a.rule = Rule::Round; });
  }

  static at::Tensor sum_of_squares(at::TensorList parts) {
    return all_taken(parts) ? reduced(parts, false) : reference::sum_of_squares(parts);
  }
  static at::Tensor max_abs(at::TensorList parts) {
    return all_taken(parts) ? reduced(parts, true) : reference::max_abs(parts);
  }

 private:
  template <class... Tensors>
  static bool flat(const at::Tensor& param, const Tensors&... others) {
    [[maybe_unused]] const auto known = [&](const at::Tensor& x) {
      return !x.defined() || (any_type(param, x) && x.numel() == param.numel());
    };
    return param.numel() > 0 && any_type(param, param) && (known(others) && ...);
  }
  static void set_betas(auto& a, double beta1, double beta2) {
    using C = std::decay_t<decltype(a.beta1)>;
    a.beta1 = static_cast<C>(beta1);
    a.beta2 = static_cast<C>(beta2);
    a.rest1 = static_cast<C>(1 - beta1);
    a.rest2 = static_cast<C>(1 - beta2);
  }
  template <class Set>
  static void step(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& first,
                   const at::Tensor& second, const Update& update, const Set& set) {
    const auto launch = [&](auto precision) {
      using C = decltype(precision);
      using Kernel = UpdateParameters<C>;
      typename Kernel::Args a;
      a.param = out(param);
      a.model = out(model);
      a.first = out(first);
      a.second = out(second);
      a.grad = in(grad);
      a.size = param.numel();
      a.grad_scale = static_cast<C>(update.grad_scale);
      a.factor = const_pointer<double>(update.factor);
      a.weight_decay = static_cast<C>(update.decoupled ? 0 : update.weight_decay);
      a.decay = static_cast<C>(update.decoupled ? 1 - update.learning_rate * update.weight_decay : 1);
      a.rate = static_cast<C>(update.learning_rate);
      a.rounding = {.stochastic = update.stochastic_rounding,
                    .key = update.numbers.key,
                    .sample = rounding_sample(update.step, Stored::Parameter),
                    .first = update.numbers.first,
                    .run = update.numbers.run,
                    .stride = update.numbers.stride};
      set(a);
      const auto single = [](const at::Tensor& x) {
        return x.scalar_type() == at::kFloat && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
      };
      a.plain = a.rule == Rule::Adam && !update.stochastic_rounding && single(param) && single(grad) && single(first) &&
                single(second);
      Driver::template launch<Kernel>(
          a, (a.size + Kernel::kThreads * Kernel::kEach - 1) / (Kernel::kThreads * Kernel::kEach));
    };
    if (param.scalar_type() == at::kDouble)
      launch(double());
    else
      launch(float());
  }

  static bool all_taken(at::TensorList parts) {
    return std::ranges::all_of(parts, [&](const at::Tensor& x) { return takes(x, parts.front()); });
  }
  static at::Tensor reduced(at::TensorList of, bool max) {
    return with_type(of.front().scalar_type(), [&](auto type) {
      using T = decltype(type);
      std::int64_t blocks = 0, done = 0;
      for (const at::Tensor& x : of) blocks += Reduce<T>::blocks(x.numel());
      at::Tensor parts = at::empty({blocks}, of.front().options().dtype(at::kDouble));
      for (const at::Tensor& x : of) {
        const std::int64_t own = Reduce<T>::blocks(x.numel());
        Driver::template launch<Reduce<T>>({.x = const_pointer<T>(x),
                                            .out = pointer<double>(parts.narrow(0, done, own)),
                                            .size = x.numel(),
                                            .max = max,
                                            .squares = !max},
                                           own);
        done += own;
      }
      while (parts.numel() > 1) {  // twice for a million times a quarter of a billion
        const std::int64_t fewer = Reduce<double>::blocks(parts.numel());
        const at::Tensor next = at::empty({fewer}, parts.options());
        Driver::template launch<Reduce<double>>({.x = const_pointer<double>(parts),
                                                 .out = pointer<double>(next),
                                                 .size = parts.numel(),
                                                 .max = max,
                                                 .squares = false},
                                                fewer);
        parts = next;
      }
      return parts.squeeze(0);
    });
  }
};

}  // namespace megatron::kernels::phases
