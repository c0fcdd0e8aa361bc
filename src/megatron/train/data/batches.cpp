#include "megatron/train/data/batches.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/model/multi_token/prediction.h"

namespace megatron::train {
namespace {

at::Tensor id_tensor(std::span<const std::int64_t> sample_ids) {
  const auto ids = at::empty({static_cast<std::int64_t>(sample_ids.size())}, at::kLong);
  std::copy(sample_ids.begin(), sample_ids.end(), ids.mutable_data_ptr<std::int64_t>());
  return ids;
}

// Row b of a [b, s] tensor; no elements where the tensor is not wanted.
template <class T>
std::span<T> row(const at::Tensor& tensor, std::int64_t b) {
  if (!tensor.defined()) return {};
  const auto size = static_cast<std::size_t>(tensor.size(1));
  return {tensor.mutable_data_ptr<T>() + static_cast<std::size_t>(b) * size, size};
}

}  // namespace

void fail_for_token(const std::string& place, std::int64_t token, std::int64_t vocab) {
  throw ConfigError(rule_got_fix(
      concat(place, ": every token must be one of 0 … ", vocab - 1, "."), concat("token ", token),
      "give data.tokenizer the tokenizer that made the data; texts with a special token that the model has "
      "no row for must be left out"));
}

model::Batch synthetic_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                             std::uint64_t seed, at::Device device) {
  const auto samples = static_cast<std::int64_t>(sample_ids.size());
  const auto tokens = at::empty({samples, seq_length}, at::kLong), labels = at::empty({samples, seq_length}, at::kLong);
  const std::uint64_t key = stream_key(seed, "synthetic tokens");
  for (std::int64_t b = 0; b < samples; ++b) {
    auto* const inputs = tokens.mutable_data_ptr<std::int64_t>() + b * seq_length;
    auto* const targets = labels.mutable_data_ptr<std::int64_t>() + b * seq_length;
    const auto sample = static_cast<std::uint64_t>(sample_ids[static_cast<std::size_t>(b)]);
    PhiloxWords words = {};  // random_word() of each, four at a time
    for (std::int64_t i = 0; i <= seq_length; ++i) {
      if (i % 4 == 0) words = philox(key, static_cast<std::uint64_t>(i / 4), sample);
      const std::int64_t token = words[static_cast<std::size_t>(i % 4)] % vocab;
      if (i < seq_length) inputs[i] = token;
      if (i > 0) targets[i - 1] = token;
    }
  }
  model::Batch batch;
  batch.tokens_bs = tokens;
  batch.labels_bs = labels;
  batch.sample_ids = id_tensor(sample_ids);
  return on_device(std::move(batch), device);
}

model::Batch synthetic_bert_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length, std::int64_t vocab,
                                  std::uint64_t seed, at::ScalarType dtype, at::Device device, bool two_types) {
  constexpr std::uint32_t kMasked = static_cast<std::uint32_t>(0.15 * 0x1p32);
  const auto samples = static_cast<std::int64_t>(sample_ids.size());
  auto batch = synthetic_batch(sample_ids, seq_length, vocab, seed, at::kCPU);
  const auto types = at::zeros({samples, seq_length}, at::kLong), swapped = at::empty({samples}, at::kLong);
  const auto mask = at::zeros({samples, seq_length}, at::kFloat), lengths = at::empty({samples}, at::kInt);
  const std::uint64_t masked = stream_key(seed, "synthetic masks"), pairs = stream_key(seed, "synthetic pairs");
  for (std::int64_t b = 0; b < samples; ++b) {
    const auto sample = static_cast<std::uint64_t>(sample_ids[static_cast<std::size_t>(b)]);
    const bool padded = random_word(pairs, sample, 3) % 4 == 0;
    const std::int64_t length = seq_length - (padded ? random_word(pairs, sample, 0) % (seq_length / 2 + 1) : 0);
    const std::int64_t second = random_word(pairs, sample, 1) % length;
    lengths.mutable_data_ptr<std::int32_t>()[b] = static_cast<std::int32_t>(length);
    swapped.mutable_data_ptr<std::int64_t>()[b] = random_word(pairs, sample, 2) % 2;
    for (std::int64_t i = 0; i < length; ++i) {
      row<std::int64_t>(types, b)[static_cast<std::size_t>(i)] = i < second || !two_types ? 0 : 1;
      row<float>(mask, b)[static_cast<std::size_t>(i)] =
          random_word(masked, sample, static_cast<std::uint64_t>(i)) < kMasked ? 1.0f : 0.0f;
    }
  }
  batch.loss_mask_bs = mask.to(dtype);
  batch.token_types_bs = types;
  batch.key_lengths_b = lengths;
  batch.sentence_labels_b = swapped;
  return on_device(std::move(batch), device);
}

model::Batch synthetic_t5_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length,
                                std::int64_t decoder_length, std::int64_t vocab, std::uint64_t seed,
                                at::ScalarType dtype, at::Device device) {
  const auto samples = static_cast<std::int64_t>(sample_ids.size());
  auto batch = synthetic_batch(sample_ids, decoder_length, vocab, seed, at::kCPU);
  batch.decoder_tokens_bs = batch.tokens_bs;
  batch.tokens_bs = synthetic_batch(sample_ids, seq_length, vocab, seed + 1, at::kCPU).tokens_bs;
  const auto mask = at::zeros({samples, decoder_length}, at::kFloat), lengths = at::empty({samples}, at::kInt);
  const std::uint64_t key = stream_key(seed, "synthetic lengths");
  for (std::int64_t b = 0; b < samples; ++b) {
    const auto sample = static_cast<std::uint64_t>(sample_ids[static_cast<std::size_t>(b)]);
    const std::int64_t length = seq_length - random_word(key, sample, 0) % (seq_length / 2 + 1);
    const std::int64_t written = decoder_length - random_word(key, sample, 1) % (decoder_length / 2 + 1);
    lengths.mutable_data_ptr<std::int32_t>()[b] = static_cast<std::int32_t>(length);
    std::ranges::fill(row<float>(mask, b).first(static_cast<std::size_t>(written)), 1.0f);
  }
  batch.loss_mask_bs = mask.to(dtype);
  batch.key_lengths_b = lengths;
  return on_device(std::move(batch), device);
}

DatasetBatches::DatasetBatches(std::unique_ptr<const data::Dataset> dataset, std::int64_t vocab, at::ScalarType dtype)
    : dataset_(std::move(dataset)), vocab_(vocab), dtype_(dtype) {}

void DatasetBatches::check_tokens(std::int64_t sample, std::span<const std::int64_t> tokens) const {
  for (const std::int64_t token : tokens)
    if (token < 0 || token >= vocab_) fail_for_token(dataset_->name_of(sample), token, vocab_);
}

model::Batch DatasetBatches::get(std::span<const std::int64_t> sample_ids) const {
  const auto samples = static_cast<std::int64_t>(sample_ids.size()), seq_length = dataset_->seq_length();
  const bool has_gaps = std::ranges::find(sample_ids, kNoSample) != sample_ids.end();
  const data::SampleFields fields = dataset_->fields();
  const std::int64_t written = fields.decoder_length > 0 ? fields.decoder_length : seq_length;
  const auto make = [&](bool wanted, at::ScalarType type, std::int64_t length) {
    return wanted ? at::empty({samples, length}, type) : at::Tensor();
  };
  const auto tokens = make(true, at::kLong, seq_length), labels = make(true, at::kLong, written),
             mask = make(fields.loss_mask || has_gaps, at::kFloat, written),
             decoder = make(fields.decoder_length > 0, at::kLong, written),
             positions = make(fields.position_ids, at::kLong, seq_length),
             first_key = make(fields.first_key, at::kInt, seq_length),
             types = make(fields.pairs, at::kLong, seq_length);
  const bool whole = fields.pairs || fields.decoder_length > 0;
  const auto lengths = whole ? at::empty({samples}, at::kInt) : at::Tensor();
  const auto swapped = fields.pairs ? at::empty({samples}, at::kLong) : at::Tensor();
  for (std::int64_t b = 0; b < samples; ++b) {
    const std::int64_t id = sample_ids[static_cast<std::size_t>(b)];
    const std::int64_t sample = id == kNoSample ? 0 : sample_of(id);
    data::PairInfo pair;
    dataset_->get(sample, {.tokens = row<std::int64_t>(tokens, b),
                           .labels = row<std::int64_t>(labels, b),
                           .loss_mask = row<float>(mask, b),
                           .position_ids = row<std::int64_t>(positions, b),
                           .first_key = row<std::int32_t>(first_key, b),
                           .types = row<std::int64_t>(types, b),
                           .pair = &pair,
                           .decoder_tokens = row<std::int64_t>(decoder, b)});
    check_tokens(sample, row<std::int64_t>(tokens, b));
    check_tokens(sample, row<std::int64_t>(labels, b));
    check_tokens(sample, row<std::int64_t>(decoder, b));
    if (id == kNoSample) std::ranges::fill(row<float>(mask, b), 0.0f);
    if (whole) lengths.mutable_data_ptr<std::int32_t>()[b] = static_cast<std::int32_t>(pair.length);
    if (!fields.pairs) continue;
    swapped.mutable_data_ptr<std::int64_t>()[b] = id == kNoSample ? -1 : pair.swapped ? 1 : 0;
  }
  model::Batch batch;
  batch.tokens_bs = tokens;
  batch.labels_bs = labels;
  if (mask.defined()) batch.loss_mask_bs = mask.to(dtype_);
  batch.position_ids_bs = positions;
  batch.first_key_bs = first_key;
  batch.token_types_bs = types;
  batch.key_lengths_b = lengths;
  batch.sentence_labels_b = swapped;
  batch.decoder_tokens_bs = decoder;
  batch.sample_ids = id_tensor(sample_ids);
  if (references_) {
    batch.reference_b = at::zeros({samples}, at::kDouble);
    for (std::int64_t b = 0; b < samples; ++b)
      if (const std::int64_t id = sample_ids[static_cast<std::size_t>(b)]; id != kNoSample)
        batch.reference_b.mutable_data_ptr<double>()[b] =
            references_->at(static_cast<std::size_t>(dataset_->document_of(sample_of(id))));
  }
  return batch;
}

namespace {

/// Columns of x [b, s].
at::Tensor columns(const at::Tensor& x, const std::vector<plan::Positions>& pieces) {
  std::vector<at::Tensor> parts;
  for (const plan::Positions& piece : pieces) parts.push_back(x.narrow(1, piece.begin, piece.size()));
  return at::cat(parts, 1);
}

}  // namespace

model::Batch sequence_part(model::Batch batch, const plan::SequenceShare& share) {
  if (share.ranks == 1) return batch;
  const auto pieces = share.pieces(batch.tokens_bs.size(1));
  if (batch.decoder_tokens_bs.defined()) {  // what it is to predict is its own
    const auto of_decoder = share.pieces(batch.decoder_tokens_bs.size(1));
    for (at::Tensor* tensor : {&batch.decoder_tokens_bs, &batch.labels_bs, &batch.loss_mask_bs})
      if (tensor->defined()) *tensor = columns(*tensor, of_decoder);
  } else {
    for (at::Tensor* tensor : {&batch.labels_bs, &batch.loss_mask_bs})
      if (tensor->defined()) *tensor = columns(*tensor, pieces);
  }
  if (!batch.position_ids_bs.defined())
    batch.position_ids_bs = at::arange(batch.tokens_bs.size(1), batch.tokens_bs.options()).expand_as(batch.tokens_bs);
  for (at::Tensor* tensor : {&batch.tokens_bs, &batch.position_ids_bs, &batch.token_types_bs})
    if (tensor->defined()) *tensor = columns(*tensor, pieces);
  if (batch.sentence_labels_b.defined() && share.rank > 0)
    batch.sentence_labels_b = at::full_like(batch.sentence_labels_b, -1);
  if (batch.host) batch.host = std::make_shared<const model::Batch>(sequence_part(*batch.host, share));
  return batch;
}

model::Batch sequence_part(const model::Batch& batch, const plan::SequenceShare& share, std::int64_t depths,
                           at::ScalarType precise) {
  model::Batch part = sequence_part(batch, share);
  if (share.ranks == 1) return part;
  for (std::int64_t places = depths; places > 0; --places) {
    model::Batch ahead = sequence_part(model::batch_ahead(batch, places, precise), share);
    ahead.ahead = std::move(part.ahead);
    part.ahead = std::make_shared<const model::Batch>(std::move(ahead));
  }
  return part;
}

/// From pinned memory, so that the host does not wait: the copy is in the order of the device's stream.
at::Tensor on_device(const at::Tensor& x, at::Device device) {
  return (device.is_cuda() ? x.pin_memory() : x).to(device, /*non_blocking=*/true);
}

model::Batch on_device(model::Batch batch, at::Device device) {
  if (device.is_cpu()) return batch;
  batch.host = std::make_shared<const model::Batch>(batch);
  for (at::Tensor* tensor : {&batch.tokens_bs, &batch.labels_bs, &batch.loss_mask_bs, &batch.position_ids_bs,
                             &batch.first_key_bs, &batch.token_types_bs, &batch.key_lengths_b, &batch.sentence_labels_b,
                             &batch.targets, &batch.decoder_tokens_bs, &batch.reference_b})
    if (tensor->defined()) *tensor = on_device(*tensor, device);
  return batch;
}

}  // namespace megatron::train
