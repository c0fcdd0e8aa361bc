#pragma once
#include "megatron/train/engine.h"

// The magnitudes of weight-decomposed adapters (lora.dora; parallel/magnitude.h) as a run begins.
namespace megatron::train {

/// Gives the magnitudes of this rank the norms of the rows of its weights with the adapters added, and their masters
/// these norms before they are rounded: with B zero those of the weights, so that the model is at first what its
/// weights are, in bf16 and fp16 but for the rounding of m (parallel/magnitude.h). Nothing without lora.dora. Called by
/// the engine, or with lora.base by start_run() when the base is there. Collective over tp.
void set_magnitudes(const plan::ResolvedRun& run, Engine& engine);

}  // namespace megatron::train
