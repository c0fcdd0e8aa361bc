#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/dataset.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/index/gpt_index.h"
#include "megatron/data/index/index_cache.h"

namespace megatron::data {

/// One split of one .bin/.idx pair, as an endless-enough list of samples in a fixed order.
struct GptDatasetSpec {
  std::string prefix;
  std::string split = "969,30,1";
  SplitPart part = SplitPart::Train;
  GptIndexSpec index = {};
  std::string cache_folder = "";  ///< of the index files; empty: cache/GPTDataset_indices beside the pair
};

/// What is made of a sample's tokens.
struct GptSampleOptions {
  std::int64_t eod = -1;  ///< end-of-document token; needed by the three options below
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  std::int64_t pad = -1;  ///< token that fills a partial sample and takes no part in the loss; -1: none in the text
  /// Changes the tokens of sample `i`, the extra one included, e.g. fill_in_middle.h. Nothing: they stay as they are.
  std::function<void(std::int64_t i, std::span<std::int64_t> tokens)> transform = {};
};

/// Samples of a GPT dataset, equal to Megatron-Core's for the same seed.
///
///   GptDataset::build(spec);
///   const GptDataset train(spec, options);
///   train.get(sample_number % train.size(), {.tokens = …, .labels = …});
///
/// The index lies in files whose name is a hash of all that decides it (the lengths of the sequences, split, part,
/// seed, sequence length, number of samples), so they are built once, shared by all ranks through the page cache, and
/// never taken for another's. Any process may have written them: every entry is checked when it is used.
class GptDataset : public Dataset {
 public:
  /// Builds the index files unless they are there. Every rank calls it: the first builds, the others wait for it as
  /// build_once() describes. Throws ConfigError when the split is empty and samples are asked of it, std::runtime_error
  /// or ConfigError when the folder cannot be written.
  static void build(const GptDatasetSpec& spec, const WaitMessage& say = {});

  /// Throws ConfigError when the index files are missing or damaged.
  GptDataset(const GptDatasetSpec& spec, const GptSampleOptions& options);

  /// At least spec.index.num_samples.
  std::int64_t size() const override { return index_.shuffle.size(); }
  std::int64_t seq_length() const override { return spec_.index.seq_length; }
  SampleFields fields() const override;
  void get(std::int64_t i, const Sample& out) const override;
  std::string name_of(std::int64_t i) const override;

  /// Sequences whose tokens sample `i` holds, in order.
  std::vector<std::int64_t> sequences_of(std::int64_t i) const;

 private:
  GptDataset(const GptDatasetSpec& spec, const GptSampleOptions& options, IndexedDataset data);

  struct SequenceSlice {
    std::int64_t sequence, first, size;
  };
  std::vector<SequenceSlice> pieces_of(std::int64_t i) const;
  void read_tokens(std::int64_t i, std::span<std::int64_t> out) const;

  GptDatasetSpec spec_;
  GptSampleOptions options_;
  IndexedDataset data_;
  SequenceRange range_;
  GptIndex index_;
};

/// Where files that follow from `spec`, all of it, are kept: `kind` with the part's name. Without a cache folder in
/// `spec` that is cache/KIND_indices beside the pair.
CacheEntry cache_entry(const GptDatasetSpec& spec, const IndexedDataset& data, const std::string& kind);

/// The files of a split's index in `spec`'s cache folder.
GptIndexFiles gpt_index_files(const GptDatasetSpec& spec, const IndexedDataset& data);

}  // namespace megatron::data
