#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "megatron/data/part_dataset.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/plan/rules.h"

namespace megatron::train {

/// What training must know of a kind of model: models/NAME/train.cpp.
struct ModelSamples {
  bool needs_tokenizer = false;  ///< its samples are made with it, not of tokens alone
  /// What its samples are made by, besides what all parts of data have.
  void (*specify)(const plan::ResolvedRun& run, data::PartSpec& spec) = nullptr;
  /// Samples at random, for benchmarks and tests (batches.h).
  model::Batch (*synthetic)(const plan::ResolvedRun& run, std::span<const std::int64_t> sample_ids,
                            at::Device device) = nullptr;
};

/// Those of the kind that model.architecture names (config::model_kind_row).
const ModelSamples& model_samples(const std::string& architecture);

}  // namespace megatron::train
