#include <algorithm>

#include "megatron/schedule/schedules/counter.h"
#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// Narayanan et al. 2019, 2021.
std::vector<Op> one_f_one_b(const Shape& shape, int rank) {
  std::vector<Op> ops;
  const int warm_up = std::min(shape.num_ranks - rank - 1, shape.num_microbatches);
  Counter forward(ops, shape.num_microbatches), backward(ops, shape.num_microbatches);
  while (forward.done < warm_up) forward.next(Kind::Forward, rank);
  while (forward.done < shape.num_microbatches) {
    forward.next(Kind::Forward, rank);
    backward.next(Kind::Backward, rank);
  }
  while (backward.done < shape.num_microbatches) backward.next(Kind::Backward, rank);
  return ops;
}

}  // namespace megatron::schedule
