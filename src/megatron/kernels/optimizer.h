#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

// Flat one-dimensional contiguous tensors.
namespace megatron::kernels {

/// Where the elements of a flat range stand in the whole model, so that rounding is the same in every layout: element i
/// is number first + (i / run) * stride + i % run of the full tensor that has `key`.
struct ElementNumbers {
  std::uint64_t key = 0;
  std::int64_t first = 0, run = 1, stride = 1;
};

struct Update {
  double learning_rate = 0, weight_decay = 0;
  double eps_factor = 1;  ///< of Adam's eps
  double grad_scale = 1;  ///< multiplies the gradient: clipping, loss scale and mean over tokens, in the same pass
  /// Where defined, in place of grad_scale: one float64 number on the parameters' device, which the host need not
  /// know. NaN: nothing changes, neither parameters nor moments.
  at::Tensor factor = {};
  std::int64_t step = 1;  ///< counts from 1, for bias corrections and rounding
  bool decoupled = true;  ///< decay of the weights (Loshchilov & Hutter 2019), not added to the gradient (L2)
  /// Round stochastically what is stored in bf16 or fp16, by Philox of (numbers.key, element, step); else to nearest.
  bool stochastic_rounding = false;
  ElementNumbers numbers = {};
};

/// What is stored in 16 bits; each is rounded by words of its own.
enum class Stored : std::uint8_t { Parameter, FirstMoment, SecondMoment };

/// Stochastic rounding (Gupta et al. 2015) takes random_word(numbers.key, rounding_sample(step, stored), number of the
/// element): |x| goes up where its part below the last place, in units of that, plus the word's upper 16 bits over 2^16
/// reaches 1.
constexpr std::uint64_t rounding_sample(std::int64_t step, Stored stored) {
  return static_cast<std::uint64_t>(step) * 4 + static_cast<std::uint64_t>(stored);
}

struct Adam {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
/// Adam (Kingma & Ba 2015), in one pass: 28 bytes a float32 parameter. `param` float32 or float64, of the precision of
/// the update (a bf16 or fp16 `param` without `model` is updated in float32 and rounded); `grad` of any floating dtype;
/// moments float32, float64 or bf16: the update follows their new values before they are rounded. `model`, where
/// defined (bf16, fp16), is written with the new `param`: the parameter that the network computes with.
void adam_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const Adam& adam, const Update& update);

/// Stochastic gradient descent; momentum_buffer = momentum * momentum_buffer + gradient, undefined where momentum is 0.
void sgd_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& momentum_buffer,
          double momentum, const Update& update);

struct Lion {
  double beta1 = 0.9, beta2 = 0.99;
};
/// Lion (Chen et al. 2023, algorithm 2): the sign of beta1 * exp_avg + (1 - beta1) * gradient.
void lion_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const Lion& lion, const Update& update);

/// Writes `model` (bf16 or fp16) as the update that left `param` did: what a checkpoint of masters does not hold.
void round_(const at::Tensor& model, const at::Tensor& param, const Update& update);

/// Sum of squares of all elements of `parts`, of which there is at least one: a float64 scalar where they are, for
/// which the host does not wait. Accumulated in blocks whose boundaries, and in an order that, the sizes alone decide.
/// NaN and inf propagate.
at::Tensor sum_of_squares(at::TensorList parts);
/// Likewise the largest absolute value; NaN if any is NaN, 0 of no elements.
at::Tensor max_abs(at::TensorList parts);

}  // namespace megatron::kernels
