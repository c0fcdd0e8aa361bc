#pragma once
#include "megatron/kernels/phases/operators/attention.h"
#include "megatron/kernels/phases/operators/dropout.h"
#include "megatron/kernels/phases/operators/elementwise.h"
#include "megatron/kernels/phases/operators/experts.h"
#include "megatron/kernels/phases/operators/fp8.h"
#include "megatron/kernels/phases/operators/losses.h"
#include "megatron/kernels/phases/operators/normalization.h"
#include "megatron/kernels/phases/operators/updates.h"

namespace megatron::kernels::phases {

/// Every operator that is made of phases; the members of matrix products are null.
template <class Driver>
constexpr Operators operators_of() {
  using Drop = DropoutOperators<Driver>;
  using Elementwise = ElementwiseOperators<Driver>;
  using Experts = ExpertOperators<Driver>;
  using EightBits = Fp8Operators<Driver>;
  using Norm = NormOperators<Driver>;
  using Loss = LossOperators<Driver>;
  using Updates = UpdateOperators<Driver>;
  using Heads = AttentionOperators<Driver>;
  return {.bias_activation = Elementwise::bias_activation,
          .activation_backward = Elementwise::activation_backward,
          .activation = Elementwise::activation,
          .bias_gated_activation = Elementwise::bias_gated_activation,
          .gated_activation_backward = Elementwise::gated_activation_backward,
          .gated_activation = Elementwise::gated_activation,
          .attention = Heads::attention,
          .attention_backward = Heads::attention_backward,
          .rotate_ = Elementwise::rotate_,
          .linear_activation = Elementwise::linear_activation,
          .linear_activation_gradient = Elementwise::linear_activation_gradient,
          .linear_gradients = Norm::linear_gradients,
          .weighted_activation_backward = Experts::weighted_activation_backward,
          .combined_rows = Experts::combined_rows,
          .fp8_magnitude = EightBits::fp8_magnitude,
          .fp8_scale_of = EightBits::fp8_scale_of,
          .fp8_numbers = EightBits::fp8_numbers,
          .fp8_rounded = EightBits::fp8_rounded,
          .fp8_matrices = EightBits::fp8_matrices,
          .fp8_rounded_in_blocks = EightBits::fp8_rounded_in_blocks,
          .layer_norm = Norm::layer_norm,
          .layer_norm_backward = Norm::layer_norm_backward,
          .rms_norm = Norm::rms_norm,
          .rms_norm_backward = Norm::rms_norm_backward,
          .bias_dropout_add = Drop::bias_dropout_add,
          .bias_dropout_add_norm = Norm::bias_dropout_add_norm,
          .bias_dropout_add_rms_norm = Norm::bias_dropout_add_rms_norm,
          .bias_dropout_add_norm_backward = Norm::bias_dropout_add_norm_backward,
          .accumulate_bias_gradient = Norm::accumulate_bias_gradient,
          .dropout_backward = Drop::dropout_backward,
          .dropout_mask = Drop::dropout_mask,
          .attention_dropout_mask = Drop::attention_dropout_mask,
          .embedding = Elementwise::embedding,
          .embedding_backward = Elementwise::embedding_backward,
          .softmax_pieces = Loss::softmax_pieces,
          .cross_entropy_gradient_ = Loss::cross_entropy_gradient_,
          .adam_ = Updates::adam_,
          .sgd_ = Updates::sgd_,
          .lion_ = Updates::lion_,
          .round_ = Updates::round_,
          .sum_of_squares = Updates::sum_of_squares,
          .max_abs = Updates::max_abs};
}

}  // namespace megatron::kernels::phases
