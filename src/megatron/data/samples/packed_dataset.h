#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/data/dataset.h"
#include "megatron/data/samples/gpt_dataset.h"
#include "megatron/data/samples/pack.h"

namespace megatron::data {

/// Samples of whole documents (pack.h): attention never reaches from one into another, positions begin at 0 in each,
/// and the last token of a document predicts nothing. What a sample has room left for is token 0 outside the loss. A
/// token stored as ~id (below 0; sft.h writes them) is id, and no label of the loss.
///
/// The order: NumpyRandom(seed) shuffles the sequences of each pass, in which they are packed, and then its samples;
/// as many passes as num_samples needs, at least one. It lies in the cache, as GptDataset's.
class PackedDataset : public Dataset {
 public:
  /// Builds the order unless it is there, and opens it. Of spec.index, extra_token and keep_partial have no meaning.
  /// Throws what GptDataset::build does, and ConfigError where samples are asked of documents without places.
  PackedDataset(const GptDatasetSpec& spec, Packing packing, const WaitMessage& say);

  std::int64_t size() const override { return begins_->size() - 1; }
  std::int64_t seq_length() const override { return spec_.index.seq_length; }
  SampleFields fields() const override { return {.loss_mask = true, .position_ids = true, .first_key = true}; }
  void get(std::int64_t i, const Sample& out) const override;
  std::string name_of(std::int64_t i) const override;

  /// The pieces of sample `i`, in order.
  std::vector<SequenceSlice> pieces_of(std::int64_t i) const;

 private:
  void build(const CacheEntry& entry, Packing packing) const;

  GptDatasetSpec spec_;
  IndexedDataset data_;
  SequenceRange range_;
  std::optional<NpyArray> pieces_, begins_;  // [pieces, 2]: sequence and first place; [samples + 1]
};

}  // namespace megatron::data
