#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/data/gpt_dataset.h"
#include "megatron/model/gpt.h"

namespace megatron::train {

/// Samples whose tokens are random words of (seed, sample id, position): a task of every size without a file, for
/// benchmarks and tests. Uniform over the vocabulary; labels are the next tokens.
model::Batch synthetic_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                             std::uint64_t seed, at::Device device);

/// Throws the ConfigError of a token that lies outside the vocabulary of `vocab` ids. `place`: "sample 12".
[[noreturn]] void fail_for_token(const std::string& prefix, std::int64_t token, const std::string& place,
                                 std::int64_t vocab);

/// Fills microbatches from a dataset. Sample numbers count over the whole run; past the dataset's end they begin again.
class DatasetBatches {
 public:
  /// Opens the dataset, whose index is there (data::GptDataset::build). `eod`: end-of-document token, or -1 where no
  /// option of `data` needs it. `dtype`: of the loss mask. `vocab`: ids that the model knows.
  DatasetBatches(const data::GptDatasetSpec& spec, const config::DataConfig& data, std::int64_t eod, std::int64_t vocab,
                 at::ScalarType dtype, at::Device device);

  /// Throws ConfigError naming the data and the sample for a token outside the vocabulary, besides what
  /// data::GptDataset::get throws.
  model::Batch get(std::span<const std::int64_t> sample_ids) const;

 private:
  void check_tokens(std::int64_t sample, std::span<const std::int64_t> tokens) const;

  data::GptDataset dataset_;
  std::string prefix_;
  std::int64_t vocab_;
  bool wants_mask_, wants_positions_, wants_first_key_;  // what is not wanted is 1; 0, 1, 2, …; 0
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace megatron::train
