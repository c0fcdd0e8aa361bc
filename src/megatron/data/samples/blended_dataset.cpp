#include "megatron/data/samples/blended_dataset.h"

#include <numeric>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron::data {
namespace {

constexpr const char *kSetIndex = "dataset_index.npy", *kSampleIndex = "dataset_sample_index.npy";
constexpr std::int64_t kMaxSamples = std::int64_t{1} << 48;

std::vector<std::int64_t> sizes_of(const std::vector<std::unique_ptr<const Dataset>>& sets) {
  std::vector<std::int64_t> sizes;
  for (const auto& set : sets) sizes.push_back(set->size());
  return sizes;
}

/// Weights and sizes decide the order: what the sets hold does not.
CacheEntry entry_of(const BlendedDataset::Spec& spec, const std::vector<std::int64_t>& sizes) {
  std::string description = concat("version: 1\nsamples: ", spec.size ? std::to_string(*spec.size) : "all", "\n");
  for (std::size_t i = 0; i < sizes.size(); ++i)
    description += fmt::format("set of {} samples, weight {:a}\n", sizes[i], spec.weights[i]);  // every bit of it
  return {spec.cache_folder, "BlendedDataset-" + spec.name, description};
}

void check_takes(const std::vector<std::int64_t>& taken, const std::vector<std::unique_ptr<const Dataset>>& sets) {
  for (std::size_t i = 0; i < sets.size(); ++i)
    if (taken[i] > sets[i]->size())
      throw ConfigError(rule_got_fix(
          "the order of a blend must not take more samples of a dataset than that has.",
          concat(taken[i], " of ", sets[i]->size(), " (", sets[i]->name_of(0), ")"),
          "ask a few more samples, or give the dataset a weight that is not tiny: short blends do not keep them"));
}

}  // namespace

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<const Dataset>> sets, const Spec& spec,
                               const WaitMessage& say)
    : sets_(std::move(sets)) {
  if (sets_.empty() || spec.weights.size() != sets_.size())
    throw std::logic_error("a blend needs a weight for each set");
  const CacheEntry entry = entry_of(spec, sizes_of(sets_));
  build_once(
      entry, {kSetIndex, kSampleIndex}, [&] { build(spec, entry); }, say);
  set_.emplace(entry.file(kSetIndex));
  sample_.emplace(entry.file(kSampleIndex));
  if (set_->shape().size() != 1 || sample_->shape() != set_->shape())
    throw ConfigError(rule_got_fix(concat(entry.file(kSampleIndex), ": must have a number for each sample."),
                                   concat(sample_->size(), " numbers for ", set_->size(), " samples"),
                                   "remove the files; they are built again"));
}

void BlendedDataset::build(const Spec& spec, const CacheEntry& entry) const {
  const std::vector<std::int64_t> sizes = sizes_of(sets_);
  const std::int64_t size = spec.size.value_or(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  if (size < 0 || size > kMaxSamples)
    throw ConfigError(rule_got_fix(concat("a blend has 0 to ", kMaxSamples, " samples."), concat(size),
                                   "a shorter run: --train-iters"));
  NpyWriter set(entry.file(kSetIndex), NpyType::I16, {size}), sample(entry.file(kSampleIndex), NpyType::I64, {size});
  const BlendOrder order{set.values<std::int16_t>(), sample.values<std::int64_t>()};
  if (spec.size)
    check_takes(fill_blend_order(normalize_weights(spec.weights), order), sets_);
  else
    fill_exhaustive_order(sizes, order);
  set.publish();
  sample.publish();
}

BlendedDataset::BlendedSample BlendedDataset::place_of(std::int64_t i) const {
  if (i < 0 || i >= size()) throw std::out_of_range(concat("sample ", i, " of ", size()));
  const std::int64_t set = (*set_)[i], sample = (*sample_)[i];
  const auto damaged = [](const std::string& place, const std::string& got) {
    throw ConfigError(
        rule_got_fix(concat(place, ": a sample must be one of a dataset."), got, "remove the file; it is built again"));
  };
  if (set < 0 || set >= static_cast<std::int64_t>(sets_.size())) damaged(set_->place_of(i), concat("dataset ", set));
  if (sample < 0 || sample >= sets_[static_cast<std::size_t>(set)]->size())
    damaged(sample_->place_of(i), concat("sample ", sample));
  return {set, sample};
}

SampleFields BlendedDataset::fields() const {
  SampleFields any;
  for (const auto& set : sets_) {
    const SampleFields fields = set->fields();
    any.loss_mask |= fields.loss_mask;
    any.position_ids |= fields.position_ids;
    any.first_key |= fields.first_key;
    any.pairs |= fields.pairs;
    any.decoder_length = fields.decoder_length;  // of all sets the same
  }
  return any;
}

void BlendedDataset::get(std::int64_t i, const Sample& out) const {
  const BlendedSample place = place_of(i);
  sets_[static_cast<std::size_t>(place.set)]->get(place.sample, out);
}

std::string BlendedDataset::name_of(std::int64_t i) const {
  const BlendedSample place = place_of(i);
  return sets_[static_cast<std::size_t>(place.set)]->name_of(place.sample);
}

}  // namespace megatron::data
