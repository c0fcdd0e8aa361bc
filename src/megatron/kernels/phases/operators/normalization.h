#pragma once
#include "megatron/kernels/phases/column_sums.h"
#include "megatron/kernels/phases/dropout.h"
#include "megatron/kernels/phases/normalization.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// Norms, and the sums that come before them.
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

  static at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                     const Dropout& dropout) {
    if (!takes(x, bias, residual)) return reference::bias_dropout_add(x, bias, residual, dropout);
    add(x, x, bias, residual, dropout);
    return x;
  }
  static at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
    if (dropout.p <= 0 || !takes(dy)) return reference::dropout_backward(dy, dropout);
    at::Tensor dx = at::empty_like(dy);
    add(dx, dy, {}, {}, dropout);
    return dx;
  }

  static at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                        const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                                        const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
    if (!takes(x, dy, weight, residual_gradient) || !of_type(x, mean, compute_dtype(x)) ||
        !of_type(x, rstd, compute_dtype(x)) || !any_type(x, grad_weight) || !any_type(x, grad_bias))
      return reference::layer_norm_backward(dy, x, mean, rstd, weight, grad_weight, grad_bias, beta, residual_gradient);
    column_sums(dy, x, mean, rstd, grad_weight, grad_bias, beta);
    return input_gradient(dy, x, mean, rstd, weight, residual_gradient);
  }
  static at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                      const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                                      const at::Tensor& residual_gradient) {
    if (!takes(x, dy, weight, residual_gradient) || !of_type(x, rstd, compute_dtype(x)) || !any_type(x, grad_weight))
      return reference::rms_norm_backward(dy, x, rstd, weight, grad_weight, beta, residual_gradient);
    column_sums(dy, x, {}, rstd, grad_weight, {}, beta);
    return input_gradient(dy, x, {}, rstd, weight, residual_gradient);
  }
  static void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
    if (!takes(dy) || !any_type(dy, grad_bias)) return reference::accumulate_bias_gradient(grad_bias, dy, beta);
    column_sums(dy, {}, {}, {}, {}, grad_bias, beta);
  }

  static at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h,
                                 at::ScalarType dtype, at::Device device) {
    if (dropout.p <= 0 || !has_type(dtype) || s * b * h == 0)
      return reference::dropout_mask(dropout, s, b, h, dtype, device);
    const at::Tensor mask = at::empty({s, b, h}, at::TensorOptions().dtype(dtype).device(device));
    write_mask(mask, LaunchedMask(dropout, h, b, device), b, 0);
    return mask;
  }
  static at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n,
                                           std::int64_t head_offset, std::int64_t queries, std::int64_t keys,
                                           at::ScalarType dtype, at::Device device) {
    const bool in_part = dropout.positions > 0 && dropout.positions != queries;
    if (dropout.p <= 0 || !has_type(dtype) || b * n * queries * keys == 0 || in_part)
      return reference::attention_dropout_mask(dropout, b, n, head_offset, queries, keys, dtype, device);
    const at::Tensor mask = at::empty({b, n, queries, keys}, at::TensorOptions().dtype(dtype).device(device));
    LaunchedMask launched(dropout, keys, b, device);
    launched.mask.position_offset = head_offset * queries + dropout.position_offset;
    launched.mask.jump = 0;
    write_mask(mask, launched, 1, n * queries);
    return mask;
  }

 private:
  static void write_mask(const at::Tensor& mask, const LaunchedMask& launched, std::int64_t batch,
                         std::int64_t rows_of_sample) {
    const std::int64_t h = mask.size(-1), rows = mask.numel() / h;
    with_type(mask.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = WriteMask<T>;
      Driver::template launch<Kernel>({.out = pointer<T>(mask),
                                       .rows = rows,
                                       .h = h,
                                       .rows_of_sample = rows_of_sample,
                                       .chunks = Divisor(chunks_of<T>(h)),
                                       .group = Divisor(rows_of_sample > 0 ? rows_of_sample : batch),
                                       .mask = launched.mask},
                                      blocks_for<Kernel>(rows * chunks_of<T>(h)));
    });
  }

  static void add(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                  const Dropout& dropout) {
    const std::int64_t h = x.size(-1), rows = x.numel() / h;
    const LaunchedMask mask(dropout, h, batch_of(x), x.device());
    with_type(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = BiasDropoutAdd<T>;
      Driver::template launch<Kernel>({.x = const_pointer<T>(x),
                                       .bias = const_pointer<T>(bias),
                                       .residual = const_pointer<T>(residual),
                                       .out = pointer<T>(sum),
                                       .rows = rows,
                                       .h = h,
                                       .chunks = Divisor(chunks_of<T>(h)),
                                       .batch = Divisor(batch_of(x)),
                                       .mask = mask.mask},
                                      blocks_for<Kernel>(rows * chunks_of<T>(h)));
    });
  }

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
      const at::Tensor products = grad_weight.defined() ? at::empty({groups, h}, wide) : at::Tensor();
      const at::Tensor sums = grad_bias.defined() ? at::empty({groups, h}, wide) : at::Tensor();
      Driver::template launch<Kernel>({.dy = const_pointer<T>(dy),
                                       .x = const_pointer<T>(x),
                                       .mean = const_pointer<C>(mean),
                                       .rstd = const_pointer<C>(rstd),
                                       .products = pointer<double>(products),
                                       .sums = pointer<double>(sums),
                                       .rows = rows,
                                       .h = h},
                                      groups * Kernel::tiles(h));
      finish(products, grad_weight, beta);
      finish(sums, grad_bias, beta);
    });
  }
  static void finish(const at::Tensor& sums, const at::Tensor& gradient, double beta) {
    if (!gradient.defined()) return;
    Driver::template launch<FinishColumnSums>({.sums = const_pointer<double>(sums),
                                               .gradient = out(gradient),
                                               .groups = sums.size(0),
                                               .h = sums.size(1),
                                               .add = beta != 0},
                                              FinishColumnSums::blocks(sums.size(1)));
  }
};

}  // namespace megatron::kernels::phases
