#include "megatron/train/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "megatron/base/philox.h"

namespace megatron::train {

model::Batch synthetic_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                             std::uint64_t seed, at::Device device) {
  const auto samples = static_cast<std::int64_t>(sample_ids.size());
  const auto tokens = at::empty({samples, seq_length}, at::kLong), labels = at::empty({samples, seq_length}, at::kLong);
  const auto ids = at::empty({samples}, at::kLong);
  std::copy(sample_ids.begin(), sample_ids.end(), ids.mutable_data_ptr<std::int64_t>());
  const std::uint64_t key = stream_key(seed, "synthetic tokens");
  for (std::int64_t b = 0; b < samples; ++b) {
    auto* const inputs = tokens.mutable_data_ptr<std::int64_t>() + b * seq_length;
    auto* const targets = labels.mutable_data_ptr<std::int64_t>() + b * seq_length;
    for (std::int64_t i = 0; i <= seq_length; ++i) {
      const auto sample = static_cast<std::uint64_t>(sample_ids[static_cast<std::size_t>(b)]);
      const std::int64_t token = random_word(key, sample, static_cast<std::uint64_t>(i)) % vocab;
      if (i < seq_length) inputs[i] = token;
      if (i > 0) targets[i - 1] = token;
    }
  }
  model::Batch batch;
  batch.tokens_bs = tokens.to(device);
  batch.labels_bs = labels.to(device);
  batch.sample_ids = ids;
  return batch;
}

}  // namespace megatron::train
