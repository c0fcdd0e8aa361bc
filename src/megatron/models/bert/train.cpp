#include "megatron/data/samples/bert_dataset.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/data/model_samples.h"
#include "megatron/train/engine.h"

namespace megatron::models::bert {
namespace {

void specify(const plan::ResolvedRun& run, data::PartSpec& spec) {
  data::BertDatasetSpec samples{.sentence_order = run.shape.sentence_head};
  samples.source.short_probability = run.config.data.short_seq_prob;
  samples.masking.probability = run.config.data.mask_prob;
  spec.masked = data::masked_samples(samples);
  spec.mock.kind = data::MockKind::Pairs;
  spec.mock.sentence_order = samples.sentence_order;
  spec.mock.mask_probability = samples.masking.probability;
}

model::Batch synthetic(const plan::ResolvedRun& run, std::span<const std::int64_t> sample_ids, at::Device device) {
  return train::synthetic_bert_batch(sample_ids, run.config.data.seq_length, run.shape.vocab, run.config.train.seed,
                                     train::loss_type(run.config), device, run.shape.token_types > 1);
}

}  // namespace

extern const train::ModelSamples kTrain;
constinit const train::ModelSamples kTrain{.needs_tokenizer = true, .specify = specify, .synthetic = synthetic};

}  // namespace megatron::models::bert
