#pragma once
#include <cstdint>
#include <vector>

#include "megatron/checkpoint/slices/slices.h"
#include "megatron/plan/parameters/parameters.h"

// Which part of the full tensor a range of a rank's slice is. No torch here.
namespace megatron::checkpoint {

/// The boxes that elements [begin, end) of a dense row-major tensor of `shape` form, in their order: for a matrix at
/// most three, a part of a row, whole rows, a part of a row.
std::vector<Box> boxes_of_range(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end);

/// A box of the full tensor that lies in a rank's slice.
struct PlacedBox {
  Box box;                 ///< in the full tensor
  std::int64_t first = 0;  ///< where its first element lies in the rank's slice, flattened
  bool is_copy = false;    ///< another rank of the tensor-parallel group has the same box as its own
};

/// Elements [begin, end) of this rank's slice of the parameter `spec`, flattened in row-major order, as boxes of the
/// full tensor of which only the first `rows` rows count: the others pad it. Strides within the slice are those of a
/// dense tensor of spec.local_shape().
std::vector<PlacedBox> place(const plan::ParameterSpec& spec, std::int64_t rows, std::int64_t begin, std::int64_t end);

}  // namespace megatron::checkpoint
