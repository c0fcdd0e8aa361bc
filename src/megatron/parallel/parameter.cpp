#include "megatron/parallel/parameter.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

#include "megatron/base/philox.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/kernels/random.h"
#include "megatron/plan/parameters/blocks.h"

namespace megatron::parallel {
namespace {

void initialize(const at::Tensor& value, const plan::ParameterSpec& spec, std::uint64_t seed) {
  switch (spec.init) {
    case plan::Init::Zero:
      return;  // as the buffer was made
    case plan::Init::One:
      value.fill_(1);
      return;
    case plan::Init::Normal:
    case plan::Init::Uniform:
      break;
  }
  const std::uint64_t key = stream_key(seed, spec.name);
  const auto fill = spec.init == plan::Init::Uniform ? kernels::fill_uniform_ : kernels::fill_normal_;
  if (spec.replicated()) fill(value, key, spec.init_std, spec.shape, -1, 0);
  std::int64_t begin = 0;
  for (const plan::ShardSlice& piece : spec.pieces) {
    const auto part = value.narrow(spec.split_dim, begin, piece.length);
    fill(part, key, spec.init_std, spec.shape, spec.split_dim, piece.offset);
    begin += piece.length;
  }
}

/// Where `world`, a range of one shard, begins in the shards laid one after the other.
std::int64_t place_in_shards(const std::vector<plan::Shard>& owned, const plan::Range& world) {
  const auto after = std::upper_bound(owned.begin(), owned.end(), world.begin,
                                      [](std::int64_t at, const plan::Shard& shard) { return at < shard.world.begin; });
  if (after == owned.begin() || std::prev(after)->world.end < world.end)
    throw std::logic_error("elements that this rank does not own");
  const plan::Shard& shard = *std::prev(after);
  return shard.state + world.begin - shard.world.begin;
}

}  // namespace

void GradientQueue::add(Work work) {
  if (deferring_)
    waiting_.push_back(std::move(work));
  else
    work();
}

void run_pieces(std::vector<GradientQueue::Work> pieces) {
  for (auto& piece : pieces) std::exchange(piece, nullptr)();
}

void Parameter::contribute(GradientQueue::Work write) {
  if (queue)
    queue->add(std::move(write));
  else
    write();
}

void Parameter::gradient_written() {
  ++contributions_;
  if (after_) after_();
}

void Parameter::watch(std::function<void()> before, std::function<void()> after) {
  before_ = std::move(before);
  after_ = std::move(after);
}

std::int64_t Parameter::value_bytes() const {
  const kernels::QuantizedMatrix* const blocks = packed.quantized();
  if (blocks != nullptr) return blocks->bytes();
  return in_blocks ? 0 : static_cast<std::int64_t>(value.nbytes());
}

Contribution::Contribution(ParameterPtr parameter, When when) : parameter_(std::move(parameter)) {
  if (!parameter_) return;
  if (parameter_->frozen()) {
    target_ = at::empty_like(std::exchange(parameter_, nullptr)->value);
    return;
  }
  kept_ = when == When::WithTheRest && parameter_->pooled && parameter_->deferring();
  target_ = kept_ ? at::empty_like(parameter_->grad) : parameter_->gradient_to_write();
}

void Contribution::write(const at::Tensor& gradient) {
  if (beta() == 0)
    target_.copy_(gradient);
  else
    target_.add_(gradient);
  written();
}

void Contribution::written() {
  if (!parameter_) return;
  if (!kept_) return parameter_->gradient_written();
  parameter_->contribute([parameter = parameter_, part = std::move(target_)] {
    const at::Tensor& gradient = parameter->gradient_to_write();
    if (parameter->beta() == 0)
      gradient.copy_(part);
    else
      gradient.add_(part);
    parameter->gradient_written();
  });
}

ParameterStore::ParameterStore(std::vector<plan::ParameterSpec> specs, plan::BufferLayout layout, Precision precision,
                               at::Device device, std::uint64_t seed, Gradients gradients,
                               std::optional<PooledGradients> pooled, std::optional<PooledValues> pooled_values)
    : layout_(std::move(layout)), seed_(seed), pooled_(std::move(pooled)), pooled_values_(std::move(pooled_values)) {
  // Zeros, so that the gaps between parameters never carry anything into norms and updates of whole buffers.
  const auto options = at::TensorOptions().device(device);
  values_ = at::zeros({pooled_values_ ? pooled_values_->pool.size : layout_.size}, options.dtype(precision.values));
  if (pooled_values_) owned_values_ = at::zeros({plan::total_size(pooled_values_->owned)}, values_.options());
  for (std::size_t b = 0; pooled_values_ && b < layout_.buckets.size(); ++b) {
    const std::int64_t begin = pooled_values_->pool.begin[b], size = layout_.buckets[b].end - layout_.buckets[b].begin;
    const at::Tensor place = begin == plan::ParameterPool::kOwned
                                 ? owned_values_.narrow(0, pooled_values_->owned[b].state, size)
                                 : values_.narrow(0, begin, size);
    bucket_values_.push_back(place.variable_data());
  }
  const std::int64_t whole = pooled_ ? pooled_->pool.size : layout_.size;
  gradients_ = at::zeros({gradients == Gradients::Hold ? whole : 0}, options.dtype(precision.gradients));
  sums_ = at::zeros({pooled_ ? plan::total_size(pooled_->owned) : 0}, gradients_.options());
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) arrivals_.push_back(std::make_shared<Arrival>());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto& slot = layout_.slot_of(static_cast<int>(i));
    auto parameter = std::make_shared<Parameter>();
    parameter->spec = std::move(specs[i]);
    parameter->queue = queue_;
    parameter->arrival = arrivals_[static_cast<std::size_t>(slot.bucket)];
    const auto view = [&](const at::Tensor& buffer, std::int64_t begin) {
      return buffer.narrow(0, begin, parameter->spec.local_size()).view(parameter->spec.local_shape()).detach();
    };
    const auto bucket = static_cast<std::size_t>(slot.bucket);
    const std::int64_t in_bucket = slot.begin - layout_.buckets[bucket].begin;
    parameter->value = pooled_values_ ? view(bucket_values_[bucket], in_bucket) : view(values_, slot.begin);
    parameter->pooled = pooled_.has_value();
    if (gradients == Gradients::Hold) parameter->grad = view(bucket_gradients(bucket), in_bucket);
    by_name_.emplace(parameter->spec.name, parameter);
    parameters_.push_back(parameter);
    const at::Tensor drawn = to_fill(i);
    initialize(drawn, parameter->spec, seed);
    keep(i, drawn);
    parameter->value.requires_grad_(gradients == Gradients::Hold);
  }
}

void ParameterStore::add_in_blocks(plan::ParameterSpec spec, GgufType type) {
  static_assert(plan::kBlockNumbers == kernels::kQuantizedBlock);
  auto parameter = std::make_shared<Parameter>();
  parameter->in_blocks = type;
  parameter->value =
      at::full({1}, std::numeric_limits<double>::quiet_NaN(), values_.options()).expand(spec.local_shape());
  parameter->spec = std::move(spec);
  by_name_.emplace(parameter->spec.name, parameter);
  parameters_.push_back(std::move(parameter));
}

const at::Tensor& ParameterStore::values() const {
  if (pooled_values_) throw std::logic_error("values that take turns are not there at once");
  await_values();
  return values_;
}

void ParameterStore::await_values() const {
  if (pooled_values_) return;
  for (const auto& arrival : arrivals_) arrival->wait();
}

at::TensorOptions ParameterStore::options() const { return values_.options(); }

std::int64_t ParameterStore::value_bytes() const {
  return static_cast<std::int64_t>(values_.nbytes() + (pooled_values_ ? owned_values_.nbytes() : 0));
}

at::Tensor ParameterStore::owned_values(const plan::Range& world) const {
  if (!pooled_values_) return values().narrow(0, world.begin, world.size());
  return owned_values_.narrow(0, place_in_shards(pooled_values_->owned, world), world.size());
}

at::Tensor ParameterStore::to_fill(std::size_t index) const {
  const Parameter& parameter = *parameters_.at(index);
  return pooled_values_ ? at::zeros(parameter.spec.local_shape(), values_.options()) : parameter.value.detach();
}

void ParameterStore::keep(std::size_t index, const at::Tensor& filled) const {
  if (!pooled_values_) return kernels::written_to(filled);  // maybe through its pointer
  const auto bucket = static_cast<std::size_t>(layout_.slot_of(static_cast<int>(index)).bucket);
  const plan::Shard& shard = pooled_values_->owned.at(bucket);
  for (const plan::ParameterRange& range : shard.parameters)
    if (range.parameter == static_cast<int>(index))
      owned_values_.narrow(0, shard.state + range.local.begin, range.local.size())
          .copy_(filled.view({-1}).narrow(0, range.param.begin, range.param.size()));
}

at::Tensor ParameterStore::bucket_gradients(std::size_t bucket) const {
  const plan::BufferLayout::Bucket& planned = layout_.buckets.at(bucket);
  return gradients_.narrow(0, pooled_ ? pooled_->pool.begin.at(bucket) : planned.begin, planned.end - planned.begin);
}

at::Tensor ParameterStore::summed_gradients(const plan::Range& world) const {
  if (!pooled_) return gradients_.narrow(0, world.begin, world.size());
  return sums_.narrow(0, place_in_shards(pooled_->owned, world), world.size());
}

at::Tensor ParameterStore::first_values(std::size_t index) const {
  const plan::ParameterSpec& spec = parameters_.at(index)->spec;
  const bool half = Precision::is_half(values_.scalar_type());
  const auto values = at::zeros(spec.local_shape(), half ? values_.options().dtype(at::kFloat) : values_.options());
  initialize(values, spec, seed_);
  return values;
}

const ParameterPtr& ParameterStore::get(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end() && frozen_) return frozen_->get(name);
  if (found == by_name_.end()) throw std::out_of_range("no parameter is named " + name);
  return found->second;
}

}  // namespace megatron::parallel
