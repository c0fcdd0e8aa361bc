#pragma once
#include "megatron/plan/parameters/parameters.h"

namespace megatron::plan {

/// Whether logits have a bias for each token: BERT's, and where the matrix is the embedding's, Megatron-LM's T5, which
/// is the one with learned positions.
inline bool has_output_bias(const ModelShape& shape) {
  return shape.predicts_tokens() &&
         (shape.masked_lm_head || (shape.encoder_decoder() && shape.learned_positions && shape.tied_output));
}

}  // namespace megatron::plan
