#include "megatron/plan/parameters/buffer_layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

const BufferLayout::Slot& BufferLayout::slot_of(int parameter) const {
  // Slots are the parameters in reverse.
  const auto position = static_cast<std::size_t>(static_cast<int>(slots.size()) - 1 - parameter);
  if (position >= slots.size()) throw std::out_of_range(concat("BufferLayout: no parameter ", parameter));
  return slots[position];
}

BufferPadding sharded_padding(int dp) {
  return {.alignment = 64, .bucket_multiple = std::lcm(std::int64_t{dp}, std::int64_t{128})};
}

BufferLayout buffer_layout(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size,
                           const BufferPadding& padding) {
  if (bucket_size < 0 || padding.alignment < 1 || padding.bucket_multiple < 1)
    throw ConfigError(rule_got_fix(
        "optimizer.bucket_size must not be negative, and paddings at least 1.",
        concat("bucket_size ", bucket_size, ", paddings ", padding.alignment, " and ", padding.bucket_multiple)));
  BufferLayout layout;
  std::int64_t end = 0;  // of the last parameter; layout.size is where the next may start
  const auto close = [&] {
    if (layout.buckets.empty() || layout.buckets.back().end != 0) return;
    layout.size = round_up(round_up(end, padding.alignment), padding.bucket_multiple);
    layout.buckets.back().end = layout.size;
  };
  for (int parameter = static_cast<int>(specs.size()) - 1; parameter >= 0; --parameter) {
    const ParameterSpec& spec = specs[static_cast<std::size_t>(parameter)];
    const bool alone = std::ranges::find(padding.alone, spec.name) != padding.alone.end();
    if (alone) close();
    if (layout.buckets.empty() || layout.buckets.back().end != 0)
      layout.buckets.push_back({layout.size, 0, {}, spec.stage, padding.experts_apart && spec.of_expert});
    BufferLayout::Bucket& bucket = layout.buckets.back();
    end = layout.size + spec.local_size();
    layout.slots.push_back({parameter, layout.size, end, static_cast<int>(layout.buckets.size()) - 1});
    bucket.parameters.push_back(parameter);
    layout.size = round_up(end, padding.alignment);
    const bool full = bucket_size > 0 && end - bucket.begin >= bucket_size;
    const ParameterSpec* const next = parameter == 0 ? nullptr : &specs[static_cast<std::size_t>(parameter) - 1];
    const bool last =
        next == nullptr || next->stage != spec.stage || (padding.experts_apart && next->of_expert != spec.of_expert);
    if (full || last || alone) close();
  }
  return layout;
}

}  // namespace megatron::plan
