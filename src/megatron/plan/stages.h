#pragma once
#include <cstdint>
#include <vector>

#include "megatron/schedule/placement.h"

namespace megatron::plan {

/// What one pipeline stage has of the model. Stages are numbered in model order, from the embedding to the loss.
struct StagePart {
  std::int64_t first_layer = 0, num_layers = 0;
  bool embedding = true;  ///< word and position embedding
  bool output = true;     ///< final norm, output layer, loss
  int stage = 0;

  bool operator==(const StagePart&) const = default;
};

/// The part that is the whole model.
inline StagePart whole_model(std::int64_t num_layers) { return {.first_layer = 0, .num_layers = num_layers}; }

/// Those of `parts` (every stage of the model, in order) that pipeline rank `pp_rank` holds.
std::vector<StagePart> parts_of_rank(const std::vector<StagePart>& parts, const schedule::Placement& placement,
                                     int pp_rank);

}  // namespace megatron::plan
