#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megatron/data/dataset.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/plan/ranks/sequence_share.h"
#include "megatron/train/data/cyclic_order.h"

namespace megatron::train {

/// Samples whose tokens are random words of (seed, sample id, position): a task of every size without a file, for
/// benchmarks and tests. Uniform over the vocabulary; labels are the next tokens.
model::Batch synthetic_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                             std::uint64_t seed, at::Device device);

/// synthetic_batch() for a BERT: token types (all 0 unless there are `two_types`), lengths (a quarter of the samples is
/// padded), masked tokens (`dtype`: of the loss mask) and swapped segments are functions of the sample too.
model::Batch synthetic_bert_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                                  std::uint64_t seed, at::ScalarType dtype, at::Device device, bool two_types = true);

/// synthetic_batch() for a T5: tokens of both stacks and the encoder's lengths; of the decoder's tokens those that
/// count begin each sample.
model::Batch synthetic_t5_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length,
                                std::int64_t decoder_length, std::int64_t vocab, std::uint64_t seed,
                                at::ScalarType dtype, at::Device device);

/// Throws the ConfigError of a token that lies outside the vocabulary of `vocab` ids. `place`: "PREFIX, sample 12".
[[noreturn]] void fail_for_token(const std::string& place, std::int64_t token, std::int64_t vocab);

/// Fills microbatches from a dataset. Sample numbers count over the whole run; past the dataset's end they begin again.
/// Safe to call from several threads.
class DatasetBatches {
 public:
  static constexpr std::int64_t kNoSample = -1;  ///< a row of a microbatch that has no sample: no part in the loss

  /// `dtype`: of the loss mask. `vocab`: ids that the model knows.
  DatasetBatches(std::unique_ptr<const data::Dataset> dataset, std::int64_t vocab, at::ScalarType dtype);

  std::int64_t size() const { return dataset_->size(); }
  const data::Dataset& dataset() const { return *dataset_; }

  /// From now on batches have reference_b: numbers of documents (data::Dataset::document_of). Before get() is called
  /// from several threads.
  void refer_to(std::shared_ptr<const std::vector<double>> references) { references_ = std::move(references); }

  /// From now on sample numbers are places in a CyclicOrder, whose passes are over batches of `batch`. Before get().
  void take_cyclically(std::int64_t batch) { order_ = std::make_unique<CyclicOrder>(dataset_->size(), batch); }

  /// A microbatch in the host's memory. Throws ConfigError naming the data and the sample for a token outside the
  /// vocabulary, besides what data::Dataset::get throws.
  model::Batch get(std::span<const std::int64_t> sample_ids) const;

 private:
  std::int64_t sample_of(std::int64_t id) const { return order_ ? order_->at(id) : id % dataset_->size(); }
  void check_tokens(std::int64_t sample, std::span<const std::int64_t> tokens) const;

  std::unique_ptr<const data::Dataset> dataset_;
  std::unique_ptr<const CyclicOrder> order_;  // null: the dataset's
  std::shared_ptr<const std::vector<double>> references_;
  std::int64_t vocab_;
  at::ScalarType dtype_;
};

/// The microbatch as a rank of context parallelism has it: of what has an entry for each token the entries of its own
/// (plan/ranks/sequence_share.h), with their positions. Batch::first_key_bs and lengths stay whole. The order of
/// segments counts where the first token is, on the first rank. Of one rank the batch itself.
model::Batch sequence_part(model::Batch batch, const plan::SequenceShare& share);
/// sequence_part() with Batch::ahead for `depths` of prediction, whose masks are of dtype `precise` where the batch has
/// none.
model::Batch sequence_part(const model::Batch& batch, const plan::SequenceShare& share, std::int64_t depths,
                           at::ScalarType precise);

/// The microbatch where the model computes: its tensors are moved, its sample ids stay.
model::Batch on_device(model::Batch batch, at::Device device);
/// Its numbers in the host's memory, which may be asked without waiting for a device.
inline const model::Batch& host_part(const model::Batch& batch) { return batch.host ? *batch.host : batch; }

}  // namespace megatron::train
