#include "megatron/finetune/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/data/index/numpy_random.h"
#include "megatron/train/data/batches.h"

namespace megatron::finetune {

BatchOptions batch_options(const plan::ResolvedRun& run, bool pad_to_longest) {
  return {.seq_length = run.config.data.seq_length,
          .pad_to_longest = pad_to_longest,
          .unit = run.config.parallel.sp ? std::lcm(std::int64_t{8}, std::int64_t{run.config.parallel.tp}) : 8,
          .token_types = run.shape.token_types > 1,
          .vocab = run.shape.vocab};
}

SampleOrder::SampleOrder(std::int64_t samples, double epochs, std::uint64_t seed)
    : samples_(samples),
      total_(static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(samples)))),
      seed_(seed),
      order_(static_cast<std::size_t>(samples)) {}

void SampleOrder::shuffle(std::int64_t epoch) {
  std::iota(order_.begin(), order_.end(), 0);
  data::NumpyRandom random(static_cast<std::uint32_t>(stream_key(seed_, concat("order of epoch ", epoch))));
  random.shuffle(std::span(order_));
  epoch_ = epoch;
}

Item SampleOrder::at(std::int64_t place) {
  if (place < 0 || place >= total_) return {.sample = Item::kNone, .id = place};
  if (place / samples_ != epoch_) shuffle(place / samples_);
  return {.sample = order_[static_cast<std::size_t>(place % samples_)], .id = place};
}

std::int64_t TaskBatches::row_length(std::span<const Item> items) const {
  if (!options_.pad_to_longest) return options_.seq_length;
  std::int64_t longest = 1;
  for (const Item& item : items)
    if (item.sample != Item::kNone)
      longest = std::max<std::int64_t>(longest, task_.length(static_cast<std::size_t>(item.sample)));
  return std::min((longest + options_.unit - 1) / options_.unit * options_.unit, options_.seq_length);
}

model::Batch TaskBatches::get(std::span<const Item> items, std::int64_t length) const {
  const auto samples = static_cast<std::int64_t>(items.size()), rows = samples * form_.rows;
  const auto tokens = at::empty({rows, length}, at::kLong), types = at::empty({rows, length}, at::kLong);
  const auto lengths = at::empty({rows}, at::kInt), ids = at::empty({rows}, at::kLong);
  const auto targets = at::empty({samples, form_.targets}, at::kLong);
  std::vector<std::int32_t> row_ids(static_cast<std::size_t>(length)), row_types(row_ids.size());
  for (std::int64_t k = 0; k < samples; ++k) {
    const Item& item = items[static_cast<std::size_t>(k)];
    const bool none = item.sample == Item::kNone;
    const std::size_t sample = none ? 0 : static_cast<std::size_t>(item.sample);
    const auto target = none ? std::array<std::int64_t, 2>{-1, -1} : task_.target(sample);
    for (int t = 0; t < form_.targets; ++t)
      targets.mutable_data_ptr<std::int64_t>()[k * form_.targets + t] = target[static_cast<std::size_t>(t)];
    for (int r = 0; r < form_.rows; ++r) {
      const std::int64_t row = k * form_.rows + r;
      // What stands in for no sample is one token: nobody reads what follows from it.
      std::int32_t filled = 1;
      if (none)
        for (auto* values : {&row_ids, &row_types}) std::fill(values->begin(), values->end(), 0);
      else
        filled = task_.fill(sample, r, row_ids, row_types);
      for (const std::int32_t id : row_ids)
        if (id < 0 || id >= options_.vocab) train::fail_for_token(concat("sample ", sample), id, options_.vocab);
      std::copy(row_ids.begin(), row_ids.end(), tokens.mutable_data_ptr<std::int64_t>() + row * length);
      std::copy(row_types.begin(), row_types.end(), types.mutable_data_ptr<std::int64_t>() + row * length);
      lengths.mutable_data_ptr<std::int32_t>()[row] = filled;
      ids.mutable_data_ptr<std::int64_t>()[row] = item.id * form_.rows + r;
    }
  }
  model::Batch batch;
  batch.tokens_bs = tokens;
  if (options_.token_types) batch.token_types_bs = types;
  batch.key_lengths_b = lengths;
  batch.sample_ids = ids;
  batch.targets = form_.targets == 1 ? targets.view({samples}) : targets;
  return batch;
}

}  // namespace megatron::finetune
