#include "megatron/data/samples/t5_dataset.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/data/model_samples.h"
#include "megatron/train/engine.h"

namespace megatron::models::t5 {
namespace {

void specify(const plan::ResolvedRun& run, data::PartSpec& spec) {
  data::T5DatasetSpec samples{.decoder_seq_length = run.config.data.decoder_seq_length};
  samples.source.short_probability = run.config.data.short_seq_prob;
  samples.masking.probability = run.config.data.mask_prob;
  spec.masked = data::masked_samples(samples);
  spec.mock.kind = data::MockKind::EncoderDecoder;
  spec.mock.decoder_seq_length = samples.decoder_seq_length;
}

model::Batch synthetic(const plan::ResolvedRun& run, std::span<const std::int64_t> sample_ids, at::Device device) {
  const config::DataConfig& data = run.config.data;
  return train::synthetic_t5_batch(sample_ids, data.seq_length, data.decoder_seq_length, run.shape.vocab,
                                   run.config.train.seed, train::loss_type(run.config), device);
}

}  // namespace

extern const train::ModelSamples kTrain;
constinit const train::ModelSamples kTrain{.needs_tokenizer = true, .specify = specify, .synthetic = synthetic};

}  // namespace megatron::models::t5
