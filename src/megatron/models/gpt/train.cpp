#include "megatron/train/data/batches.h"
#include "megatron/train/data/model_samples.h"

namespace megatron::models::gpt {
namespace {

model::Batch synthetic(const plan::ResolvedRun& run, std::span<const std::int64_t> sample_ids, at::Device device) {
  return train::synthetic_batch(sample_ids, run.config.data.seq_length, run.shape.vocab, run.config.train.seed, device);
}

}  // namespace

extern const train::ModelSamples kTrain;
constinit const train::ModelSamples kTrain{.synthetic = synthetic};

}  // namespace megatron::models::gpt
