#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// Huang et al. 2019.
std::vector<Op> gpipe(const Shape& shape, int rank) {
  std::vector<Op> ops;
  for (int m = 0; m < shape.num_microbatches; ++m) ops.push_back({Kind::Forward, rank, m});
  for (int m = 0; m < shape.num_microbatches; ++m) ops.push_back({Kind::Backward, rank, m});
  return ops;
}

}  // namespace megatron::schedule
