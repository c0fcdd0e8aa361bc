#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/gpt_index.h"
#include "megatron/data/indexed_dataset.h"

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
};

/// Where a sample is written: each span has seq_length elements, or none for what is not wanted.
struct GptSample {
  std::span<std::int64_t> tokens = {};
  std::span<std::int64_t> labels = {};        ///< the token after each
  std::span<float> loss_mask = {};            ///< 1, or 0 where the label is padding (or the token ends a document)
  std::span<std::int64_t> position_ids = {};  ///< from 0, again from 0 after an end of document with reset_position_ids
  std::span<std::int32_t> first_key = {};     ///< first position that attention may see: 0, or the document's begin
};

/// Samples of a GPT dataset, equal to Megatron-Core's for the same seed.
///
///   if (rank == 0) GptDataset::build(spec);
///   world.barrier();
///   const GptDataset train(spec, options);
///   train.get(sample_number % train.size(), {.tokens = …, .labels = …});
///
/// The index lies in files whose name is a hash of all that decides it (the lengths of the sequences, split, part,
/// seed, sequence length, number of samples), so they are built once, shared by all ranks through the page cache, and
/// never taken for another's. Any process may have written them: every entry is checked when it is used.
class GptDataset {
 public:
  /// Builds the index files unless they are there. One rank calls it; more do no harm. Throws ConfigError when the
  /// split is empty and samples are asked of it, std::runtime_error or ConfigError when the folder cannot be written.
  static void build(const GptDatasetSpec& spec);

  /// Throws ConfigError when the index files are missing or damaged.
  GptDataset(const GptDatasetSpec& spec, const GptSampleOptions& options);

  /// Samples there are, at least spec.index.num_samples.
  std::int64_t size() const { return index_.shuffle.size(); }
  std::int64_t seq_length() const { return spec_.index.seq_length; }

  /// Writes sample `i` of [0, size()) into the caller's buffers. Safe from several threads. Throws std::out_of_range
  /// for another `i`, std::logic_error for spans of another length, ConfigError for a damaged file.
  void get(std::int64_t i, const GptSample& out) const;

  /// Sequences whose tokens sample `i` holds, in order.
  std::vector<std::int64_t> sequences_of(std::int64_t i) const;

 private:
  GptDataset(const GptDatasetSpec& spec, const GptSampleOptions& options, IndexedDataset data);

  struct Piece {
    std::int64_t sequence, first, size;
  };
  std::vector<Piece> pieces_of(std::int64_t i) const;
  void read_tokens(std::int64_t i, std::span<std::int64_t> out) const;

  GptDatasetSpec spec_;
  GptSampleOptions options_;
  IndexedDataset data_;
  SequenceRange range_;
  GptIndex index_;
};

/// The files of a split's index in `spec`'s cache folder.
GptIndexFiles gpt_index_files(const GptDatasetSpec& spec, const IndexedDataset& data);

}  // namespace megatron::data
