#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/kernels/dropout.h"

// Precision: x, y, residual, weight and bias share one dtype (bf16 and fp16 too); gradients of weight and bias are
// float32 (float64 for float64) or that dtype; sums are taken in float32 or wider. Shapes: x, y, residual [s, b, h]
// contiguous; weight, bias [h]; mean, rstd [s*b] (float32, or float64 for float64 x).
namespace megatron::kernels {

struct NormOutput {
  at::Tensor y, mean, rstd;
};

/// Layer normalization over the last dimension (Ba et al. 2016).
NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

/// Returns dx. grad_weight and grad_bias [h] are overwritten when `beta` is 0 and added to when it is 1. Where
/// `residual_gradient` (shape of x) is defined it is added to dx: the gradient that flows past the norm.
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient = {});

/// sum = residual + dropout(x + bias), the end of a residual branch. `bias` may be undefined. Overwrites and returns x.
at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout);

/// Gradient of bias_dropout_add with respect to x: dy * mask. Returns dy itself (no copy) when dropout.p is 0.
at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout);

struct AddNormOutput {
  at::Tensor sum, y, mean, rstd;
};
/// bias_dropout_add and the layer_norm of its sum in one pass over memory. Overwrites x with the sum.
AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps);

// Root-mean-square normalization (Zhang & Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * weight, without centring and
// bias; `mean` of the outputs is undefined. Otherwise as the functions above.
NormOutput rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                             const at::Tensor& residual_gradient = {});
AddNormOutput bias_dropout_add_rms_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                        const Dropout& dropout, const at::Tensor& weight, double eps);

/// Where the gradients of an addition and its norm go, and how (beta of the functions above): of the norm's weight and
/// bias, of a layer norm alone; of the bias that was added, undefined where there was none.
struct AddNormGradients {
  at::Tensor weight, norm_bias, bias;
  double norm_beta = 0, bias_beta = 0;
};
/// What flows on: along the residual stream, and into the branch. One tensor where nothing was dropped.
struct AddNormInputGradients {
  at::Tensor residual, x;
};
/// The way back through bias_dropout_add_norm or, `mean` undefined, bias_dropout_add_rms_norm, whose sum was `sum`:
/// from dy, that of its norm, and `residual_gradient`, that of the sum where it flows past the norm; may be undefined.
/// What layer_norm_backward (rms_norm_backward), dropout_backward and accumulate_bias_gradient give, in one pass on a
/// GPU.
AddNormInputGradients bias_dropout_add_norm_backward(const at::Tensor& dy, const at::Tensor& sum,
                                                     const at::Tensor& mean, const at::Tensor& rstd,
                                                     const at::Tensor& weight, const at::Tensor& residual_gradient,
                                                     const Dropout& dropout, const AddNormGradients& into);

/// grad_bias [h] (= or +=, by beta) the sum of dy [.., h] over all but the last dimension, summed in float64 blocks.
void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta);

}  // namespace megatron::kernels
