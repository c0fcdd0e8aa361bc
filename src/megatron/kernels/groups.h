#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/kernels/matmul.h"

namespace megatron::kernels {

/// Calls run(group, first row, rows) for each group that has some.
template <class Run>
void for_each_group(const Groups& groups, const Run& run) {
  for (std::size_t g = 0; g < groups.weights.size(); ++g)
    if (const std::int64_t begin = groups.offsets[g], rows = groups.offsets[g + 1] - begin; rows > 0)
      run(g, begin, rows);
}

}  // namespace megatron::kernels
