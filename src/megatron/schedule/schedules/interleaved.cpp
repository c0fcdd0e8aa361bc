#include <algorithm>

#include "megatron/schedule/schedules/turns.h"
#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// Narayanan et al. 2021, section 2.2.
std::vector<Op> interleaved(const Shape& shape, int rank) {
  const std::vector<int> sizes = group_sizes(shape);
  const std::vector<Turn> turns = turns_of(sizes, shape.num_chunks);
  const int total = static_cast<int>(turns.size());
  const int largest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<Op> ops;
  ops.reserve(2 * turns.size());
  const auto forward = [&](int turn) {
    const Turn& t = turns[static_cast<std::size_t>(turn)];
    ops.push_back({Kind::Forward, t.chunk * shape.num_ranks + rank, t.microbatch});
  };
  const auto backward = [&](int turn) {  // the last chunk first
    const Turn& t = turns[static_cast<std::size_t>(turn)];
    ops.push_back({Kind::Backward, (shape.num_chunks - 1 - t.chunk) * shape.num_ranks + rank, t.microbatch});
  };
  const int warm_up = std::min(2 * (shape.num_ranks - rank - 1) + (shape.num_chunks - 1) * largest, total);
  for (int turn = 0; turn < warm_up; ++turn) forward(turn);
  for (int turn = warm_up; turn < total; ++turn) {
    forward(turn);
    backward(turn - warm_up);
  }
  for (int turn = total - warm_up; turn < total; ++turn) backward(turn);
  return ops;
}

}  // namespace megatron::schedule
