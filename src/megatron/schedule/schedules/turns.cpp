#include "megatron/schedule/schedules/turns.h"

#include "megatron/base/error.h"

namespace megatron::schedule {

std::vector<int> group_sizes(const Shape& shape) {
  const int group = shape.microbatch_group == 0 ? shape.num_ranks : shape.microbatch_group;
  if (group < shape.num_ranks)
    throw ConfigError(
        rule_got_fix("a group of microbatches is at least as large as the pipeline.",
                     concat("parallel.microbatch_group_size=", shape.microbatch_group, ", ", shape.num_ranks, " ranks"),
                     concat("--parallel.microbatch_group_size ", shape.num_ranks)));
  if (shape.num_microbatches <= group) return {shape.num_microbatches};
  std::vector<int> sizes(static_cast<std::size_t>(shape.num_microbatches / group), group);
  const int rest = shape.num_microbatches % group;
  if (rest >= shape.num_ranks)
    sizes.push_back(rest);
  else
    for (int i = 0; i < rest; ++i) ++sizes[static_cast<std::size_t>(i) % sizes.size()];
  return sizes;
}

std::vector<Turn> turns_of(const std::vector<int>& sizes, int num_chunks) {
  std::vector<Turn> turns;
  int first = 0;
  for (const int size : sizes) {
    for (int chunk = 0; chunk < num_chunks; ++chunk)
      for (int i = 0; i < size; ++i) turns.push_back({chunk, first + i});
    first += size;
  }
  return turns;
}

}  // namespace megatron::schedule
