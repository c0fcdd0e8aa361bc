#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstddef>
#include <cstdint>

// Runs of the optimizers, in float32; conversions from and to what is stored in 16 bits.
namespace megatron::kernels::cpu {

/// What every update does: the gradient is grad_scale * gradient + l2 * param; param = param * decay - the step.
struct UpdateCoefficients {
  float grad_scale, l2, decay;
};
/// Coefficients of one Adam step, the bias corrections folded in.
struct AdamCoefficients {
  UpdateCoefficients update;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_sqrt_correction2, eps;
};
void adam_run(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::size_t count,
              const AdamCoefficients& coefficients);

struct SgdCoefficients {
  UpdateCoefficients update;
  float momentum, learning_rate;
};
/// `momentum` may be null.
void sgd_run(float* param, const float* grad, float* momentum, std::size_t count, const SgdCoefficients& coefficients);

struct LionCoefficients {
  UpdateCoefficients update;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, learning_rate;
};
void lion_run(float* param, const float* grad, float* exp_avg, std::size_t count, const LionCoefficients& coefficients);

double sum_of_squares_run(const float* x, std::size_t count);
/// NaN if any is NaN.
float max_abs_run(const float* x, std::size_t count);

void widen_run(const c10::BFloat16* from, float* to, std::size_t count);
void widen_run(const c10::Half* from, float* to, std::size_t count);
/// To nearest, ties to even.
void narrow_run(const float* from, c10::BFloat16* to, std::size_t count);
void narrow_run(const float* from, c10::Half* to, std::size_t count);
/// narrow_run() around the caches: for what was not read before, nor is soon.
void stream_run(const float* from, c10::BFloat16* to, std::size_t count);
/// Up in size where the 16 bits cut off plus the upper half of the element's word carry (optimizer.h).
void narrow_stochastically_run(const float* from, const std::uint32_t* words, c10::BFloat16* to, std::size_t count);

}  // namespace megatron::kernels::cpu
