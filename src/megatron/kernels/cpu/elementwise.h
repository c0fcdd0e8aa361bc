#pragma once
#include <cstddef>
#include <cstdint>

// Kernels over rows and runs of float32; one call is one piece of work for one thread.
namespace megatron::kernels::cpu {

/// x += bias (null: none), y = gelu(x). Tanh form or the exact one.
void bias_gelu_row(float* x, const float* bias, float* y, std::size_t count, bool tanh_form);
void gelu_run(const float* u, float* y, std::size_t count, bool tanh_form);
/// dy *= gelu'(u).
void gelu_backward_run(float* dy, const float* u, std::size_t count, bool tanh_form);

/// Dropout of one row: `words` null: none. Element i is dropped where words[i] < threshold.
struct RowDropout {
  const std::uint32_t* words;
  std::uint32_t threshold;
  float keep_scale;
};
/// x = residual + dropout(x + bias); bias may be null.
void bias_dropout_add_row(float* x, const float* bias, const float* residual, std::size_t count,
                          const RowDropout& dropout);
/// y = x * mask.
void dropout_row(const float* x, float* y, std::size_t count, const RowDropout& dropout);

struct RowStatistics {
  float mean, rstd;
};
/// y = (x - mean) * rstd * weight + bias.
RowStatistics layer_norm_row(const float* x, const float* weight, const float* bias, float* y, std::size_t count,
                             float eps);
/// dx (plus residual_gradient unless null), and adds the row to grad_weight and grad_bias.
void layer_norm_backward_row(const float* dy, const float* x, RowStatistics statistics, const float* weight,
                             const float* residual_gradient, float* dx, float* grad_weight, float* grad_bias,
                             std::size_t count);
/// to += from.
void add_run(float* to, const float* from, std::size_t count);

struct SoftmaxRow {
  float max;
  double sum_exp, sum;
};
/// Over one row of logits; sums in float64 over blocks.
SoftmaxRow softmax_row(const float* logits, std::size_t count);
/// logits = (exp(logits - logsumexp) - smooth) * scale.
void softmax_gradient_row(float* logits, std::size_t count, float logsumexp, float scale, float smooth);

/// Coefficients of one AdamW step, the bias corrections folded in.
struct AdamWCoefficients {
  float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_sqrt_correction2, eps;
};
void adamw_run(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::size_t count,
               const AdamWCoefficients& coefficients);
double sum_of_squares_run(const float* x, std::size_t count);
/// NaN if any is NaN.
float max_abs_run(const float* x, std::size_t count);

}  // namespace megatron::kernels::cpu
