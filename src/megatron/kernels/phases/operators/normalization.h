#pragma once
#include "megatron/kernels/phases/norms/column_sums.h"
#include "megatron/kernels/phases/norms/norm_gradient.h"
#include "megatron/kernels/phases/norms/normalization.h"
#include "megatron/kernels/phases/operators/dropout.h"

namespace megatron::kernels::phases {

/// Norms with the sums that come before them, and their way back.
template <class Driver>
struct NormOperators {
  static NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
    if (!takes(x, weight, bias)) return reference::layer_norm(x, weight, bias, eps);
    return norm(x, weight, bias, eps);
  }
  static NormOutput rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
    if (!takes(x, weight)) return reference::rms_norm(x, weight, eps);
    return norm(x, weight, {}, eps);
  }

  static AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                             const Dropout& dropout, const at::Tensor& weight,
                                             const at::Tensor& norm_bias, double eps) {
    if (!takes(x, bias, residual, weight, norm_bias))
      return reference::bias_dropout_add_norm(x, bias, residual, dropout, weight, norm_bias, eps);
    return add_norm(x, bias, residual, dropout, weight, norm_bias, eps);
  }
  static AddNormOutput bias_dropout_add_rms_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                                 const Dropout& dropout, const at::Tensor& weight, double eps) {
    if (!takes(x, bias, residual, weight))
      return reference::bias_dropout_add_rms_norm(x, bias, residual, dropout, weight, eps);
    return add_norm(x, bias, residual, dropout, weight, {}, eps);
  }

  static at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                        const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                                        const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
    if (!takes(x, dy, weight, residual_gradient) || !of_type(x, mean, compute_dtype(x)) ||
        !of_type(x, rstd, compute_dtype(x)) || !any_type(x, grad_weight) || !any_type(x, grad_bias))
      return reference::layer_norm_backward(dy, x, mean, rstd, weight, grad_weight, grad_bias, beta, residual_gradient);
    return backward(dy, x, mean, rstd, weight, residual_gradient, {}, {grad_weight, grad_bias, {}, beta, 0}).residual;
  }
  static at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                      const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                                      const at::Tensor& residual_gradient) {
    if (!takes(x, dy, weight, residual_gradient) || !of_type(x, rstd, compute_dtype(x)) || !any_type(x, grad_weight))
      return reference::rms_norm_backward(dy, x, rstd, weight, grad_weight, beta, residual_gradient);
    return backward(dy, x, {}, rstd, weight, residual_gradient, {}, {grad_weight, {}, {}, beta, 0}).residual;
  }
  static AddNormInputGradients bias_dropout_add_norm_backward(const at::Tensor& dy, const at::Tensor& sum,
                                                              const at::Tensor& mean, const at::Tensor& rstd,
                                                              const at::Tensor& weight,
                                                              const at::Tensor& residual_gradient,
                                                              const Dropout& dropout, const AddNormGradients& into) {
    const auto wide = [&](const at::Tensor& x) { return !x.defined() || of_type(sum, x, compute_dtype(sum)); };
    const auto any = [&](const at::Tensor& x) { return !x.defined() || any_type(sum, x); };
    if (!takes(sum, dy, weight, residual_gradient) || !wide(mean) || !wide(rstd) || !any(into.weight) ||
        !any(into.norm_bias) || !any(into.bias))
      return reference::bias_dropout_add_norm_backward(dy, sum, mean, rstd, weight, residual_gradient, dropout, into);
    return backward(dy, sum, mean, rstd, weight, residual_gradient, dropout, into);
  }
  static void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
    if (!takes(dy) || !any_type(dy, grad_bias)) return reference::accumulate_bias_gradient(grad_bias, dy, beta);
    column_sums(dy, {}, {}, {}, {}, grad_bias, beta);
  }
  // The device's product, and then the sums.
  static void linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                               const at::Tensor& grad_bias, double bias_beta) {
    kernels::linear_weight_gradient(grad_w, dy, x, beta);
    accumulate_bias_gradient(grad_bias, dy, bias_beta);
  }

 private:
  /// The row norms of x, or of x after the addition in it.
  static NormOutput launch_norm(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                                const Mask& mask, const at::Tensor& weight, const at::Tensor& norm_bias, double eps) {
    const std::int64_t h = x.size(-1), rows = x.numel() / h;
    const auto wide = x.options().dtype(compute_dtype(x));
    const bool rms = !norm_bias.defined();
    NormOutput result{at::empty_like(x), rms ? at::Tensor() : at::empty({rows}, wide), at::empty({rows}, wide)};
    with_type(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      Driver::template launch<AddNorm<T>>({.x = const_pointer<T>(x),
                                           .sum = residual.defined() ? pointer<T>(x) : nullptr,
                                           .bias = const_pointer<T>(bias),
                                           .residual = const_pointer<T>(residual),
                                           .weight = const_pointer<T>(weight),
                                           .norm_bias = const_pointer<T>(norm_bias),
                                           .y = pointer<T>(result.y),
                                           .mean = pointer<C>(result.mean),
                                           .rstd = pointer<C>(result.rstd),
                                           .h = h,
                                           .batch = Divisor(batch_of(x)),
                                           .eps = static_cast<C>(eps),
                                           .rms = rms,
                                           .mask = mask},
                                          rows);
    });
    return result;
  }
  static NormOutput norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
    return launch_norm(x, {}, {}, {}, weight, bias, eps);
  }
  static AddNormOutput add_norm(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                                const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                double eps) {
    const LaunchedMask mask(dropout, x.size(-1), batch_of(x), x.device());
    const NormOutput norm = launch_norm(x, bias, residual, mask.mask, weight, norm_bias, eps);
    return {x, norm.y, norm.mean, norm.rstd};
  }

  /// `into.norm_bias` is defined where `mean` is.
  static AddNormInputGradients backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                        const at::Tensor& rstd, const at::Tensor& weight,
                                        const at::Tensor& residual_gradient, const Dropout& dropout,
                                        const AddNormGradients& into) {
    const std::int64_t h = x.size(-1), rows = x.numel() / h;
    const LaunchedMask mask(dropout, h, batch_of(x), x.device());
    return with_type(x.scalar_type(), [&](auto type) -> AddNormInputGradients {
      using T = decltype(type);
      using C = Compute<T>;
      using Kernel = AddNormGradient<T>;
      typename Kernel::Args args{.norm = {.dy = const_pointer<T>(dy),
                                          .x = const_pointer<T>(x),
                                          .weight = const_pointer<T>(weight),
                                          .residual_gradient = const_pointer<T>(residual_gradient),
                                          .mean = const_pointer<C>(mean),
                                          .rstd = const_pointer<C>(rstd),
                                          .h = h},
                                 .mask = mask.mask,
                                 .batch = Divisor(batch_of(x)),
                                 .branch_bias = into.bias.defined(),
                                 .rows = rows};
      if (Kernel::extra_bytes(args) > Kernel::kMostSums)
        return one_by_one(dy, x, mean, rstd, weight, residual_gradient, dropout, into);
      const at::Tensor dx = at::empty_like(x), branch = mask.mask.on ? at::empty_like(x) : dx,
                       sums = at::empty({args.kinds(), Kernel::groups(rows), h}, x.options().dtype(compute_dtype(x)));
      args.norm.dx = pointer<T>(dx);
      if (mask.mask.on) args.branch = pointer<T>(branch);
      args.sums = pointer<C>(sums);
      Driver::template launch<Kernel>(args, Kernel::groups(rows));
      std::vector<Sum> to{{into.weight, into.norm_beta}};
      if (mean.defined()) to.push_back({into.norm_bias, into.norm_beta});
      if (into.bias.defined()) to.push_back({into.bias, into.bias_beta});
      finish(sums, to);
      return {dx, branch};
    });
  }
  /// Of rows whose sums take more memory than a block has.
  static AddNormInputGradients one_by_one(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                          const at::Tensor& rstd, const at::Tensor& weight,
                                          const at::Tensor& residual_gradient, const Dropout& dropout,
                                          const AddNormGradients& into) {
    column_sums(dy, x, mean, rstd, into.weight, into.norm_bias, into.norm_beta);
    const at::Tensor residual = input_gradient(dy, x, mean, rstd, weight, residual_gradient),
                     branch = DropoutOperators<Driver>::dropout_backward(residual, dropout);
    if (into.bias.defined()) accumulate_bias_gradient(into.bias, branch, into.bias_beta);
    return {residual, branch};
  }

  static at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                   const at::Tensor& rstd, const at::Tensor& weight,
                                   const at::Tensor& residual_gradient) {
    const std::int64_t h = x.size(-1), rows = x.numel() / h;
    at::Tensor dx = at::empty_like(x);
    with_type(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      Driver::template launch<NormInputGradient<T>>({.dy = const_pointer<T>(dy),
                                                     .x = const_pointer<T>(x),
                                                     .weight = const_pointer<T>(weight),
                                                     .residual_gradient = const_pointer<T>(residual_gradient),
                                                     .mean = const_pointer<C>(mean),
                                                     .rstd = const_pointer<C>(rstd),
                                                     .dx = pointer<T>(dx),
                                                     .h = h},
                                                    rows);
    });
    return dx;
  }

  /// Gradients of a gain (x defined) and of a bias, of which each may be undefined.
  static void column_sums(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                          const at::Tensor& grad_weight, const at::Tensor& grad_bias, double beta) {
    const std::int64_t h = dy.size(-1), rows = dy.numel() / h;
    with_type(dy.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      using Kernel = ColumnSums<T>;
      const std::int64_t groups = Kernel::groups(rows);
      const auto wide = dy.options().dtype(at::kDouble);
      const at::Tensor both = at::empty({2, groups, h}, wide), products = both[0], sums = both[1];
      Driver::template launch<Kernel>({.dy = const_pointer<T>(dy),
                                       .x = const_pointer<T>(x),
                                       .mean = const_pointer<C>(mean),
                                       .rstd = const_pointer<C>(rstd),
                                       .products = grad_weight.defined() ? pointer<double>(products) : nullptr,
                                       .sums = grad_bias.defined() ? pointer<double>(sums) : nullptr,
                                       .rows = rows,
                                       .h = h},
                                      groups * Kernel::tiles(h));
      finish(both, {{grad_weight, beta}, {grad_bias, beta}});
    });
  }

  /// A gradient that is a sum over rows; undefined: it is not wanted.
  struct Sum {
    at::Tensor gradient;
    double beta;
  };
  /// From `sums` [gradients, groups, h].
  static void finish(const at::Tensor& sums, const std::vector<Sum>& to) {
    FinishColumnSums::Args args{.sums = in(sums), .groups = sums.size(1), .h = sums.size(2)};
    for (std::size_t i = 0; i < to.size(); ++i) {
      args.gradient[i] = out(to[i].gradient);
      args.add[i] = to[i].beta != 0;
    }
    Driver::template launch<FinishColumnSums>(args, std::ssize(to) * FinishColumnSums::blocks(args.h));
  }
};

}  // namespace megatron::kernels::phases
