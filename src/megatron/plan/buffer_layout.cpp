#include "megatron/plan/buffer_layout.h"

#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::plan {

const BufferLayout::Slot& BufferLayout::slot_of(int parameter) const {
  // Slots are the parameters in reverse.
  const auto position = static_cast<std::size_t>(static_cast<int>(slots.size()) - 1 - parameter);
  if (position >= slots.size()) throw std::out_of_range(concat("BufferLayout: no parameter ", parameter));
  return slots[position];
}

BufferLayout buffer_layout(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size, std::int64_t alignment) {
  if (bucket_size < 0 || alignment < 1)
    throw ConfigError(rule_got_fix("optimizer.bucket_size must not be negative, and the alignment at least 1.",
                                   concat("bucket_size ", bucket_size, ", alignment ", alignment)));
  BufferLayout layout;
  for (int parameter = static_cast<int>(specs.size()) - 1; parameter >= 0; --parameter) {
    const int stage = specs[static_cast<std::size_t>(parameter)].stage;
    if (layout.buckets.empty() || layout.buckets.back().end != 0) layout.buckets.push_back({layout.size, 0, {}, stage});
    BufferLayout::Bucket& bucket = layout.buckets.back();
    const std::int64_t end = layout.size + specs[static_cast<std::size_t>(parameter)].local_size();
    layout.slots.push_back({parameter, layout.size, end, static_cast<int>(layout.buckets.size()) - 1});
    bucket.parameters.push_back(parameter);
    layout.size = (end + alignment - 1) / alignment * alignment;  // the gap belongs to the bucket
    const bool full = bucket_size > 0 && layout.size - bucket.begin >= bucket_size;
    const bool last = parameter == 0 || specs[static_cast<std::size_t>(parameter) - 1].stage != stage;
    if (full || last) bucket.end = layout.size;
  }
  return layout;
}

}  // namespace megatron::plan
