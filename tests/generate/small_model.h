#pragma once
#include "megatron/model/transformer_stage.h"

namespace megatron::generate {

/// Two layers of four heads, 30 tokens, 12 positions.
inline model::TransformerOptions small_model() {
  model::TransformerOptions options;
  options.shape = {.num_layers = 2,
                   .hidden = 16,
                   .num_heads = 4,
                   .ffn_hidden = 24,
                   .vocab = 30,
                   .padded_vocab = 32,
                   .max_positions = 12};
  return options;
}

}  // namespace megatron::generate
