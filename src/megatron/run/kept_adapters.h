#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "megatron/model/block.h"
#include "megatron/parallel/context.h"
#include "megatron/plan/stages.h"
#include "megatron/run/trained_model.h"

// Low-rank adapters beside the weights of an opened model, which stay as they are (decision 145).
namespace megatron::run {

/// Has load_rank() read the adapters in `folders` (a run's with lora.rank, or PEFT's) too: number i + 1 of
/// parallel::AdapterChoice is folders[i]. Adds to model.kept_bytes. Throws ConfigError that begins with `job` for a
/// folder of something else, adapters of another model or of layers that keep none, a model that writes no texts, and
/// where they do not fit into memory.
void keep_adapters(TrainedModel& model, const std::vector<std::string>& folders, const char* job);
/// keep_adapters() of one folder, whose adapter every text has; does nothing with "".
void keep_adapter(TrainedModel& model, const std::string& folder, const char* job);

/// This rank's slices of model.kept in the type of its weights, for the layers of `part`; null: there are none. Not
/// collective.
std::shared_ptr<const model::StageAdapters> load_kept(const TrainedModel& model, const plan::StageSpec& part,
                                                      const parallel::ParallelContext& context);

}  // namespace megatron::run
