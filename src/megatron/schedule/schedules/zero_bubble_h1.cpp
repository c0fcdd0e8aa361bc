#include <algorithm>

#include "megatron/schedule/schedules/counter.h"
#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// Qi et al. 2023.
std::vector<Op> zero_bubble_h1(const Shape& shape, int rank) {
  std::vector<Op> ops;
  const int warm_up = std::min(shape.num_ranks - rank - 1, shape.num_microbatches);
  Counter forward(ops, shape.num_microbatches), input(ops, shape.num_microbatches), weight(ops, shape.num_microbatches);
  while (forward.done < warm_up) forward.next(Kind::Forward, rank);
  while (forward.done < shape.num_microbatches) {
    forward.next(Kind::Forward, rank);
    input.next(Kind::BackwardInput, rank);
    // As many as the warm-up is shorter than rank 0's are put off: then each rank keeps as much as rank 0 does.
    if (input.done - weight.done > rank) weight.next(Kind::BackwardWeight, rank);
  }
  while (input.done < shape.num_microbatches) {
    input.next(Kind::BackwardInput, rank);
    weight.next(Kind::BackwardWeight, rank);
  }
  while (weight.done < shape.num_microbatches) weight.next(Kind::BackwardWeight, rank);
  return ops;
}

}  // namespace megatron::schedule
