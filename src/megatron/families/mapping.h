#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Which element of one naming of a model's weights is which element of another, as tables.
namespace megatron::families {

/// A box of a source tensor that makes up a box of a target tensor.
struct MappedSlice {
  std::string source;
  std::vector<std::int64_t> to;     ///< where it begins in the target
  std::vector<std::int64_t> from;   ///< where it begins in the source, in the source's order of dimensions
  std::vector<std::int64_t> shape;  ///< in the target's order of dimensions
};

/// A target tensor and what it is made of.
struct MappedTensor {
  std::vector<std::int64_t> shape;
  bool transposed = false;          ///< the sources are stored [columns, rows]
  std::vector<MappedSlice> pieces;  ///< disjoint, together the whole tensor
};

using Mapping = std::map<std::string, MappedTensor>;  ///< by the target's name

/// The table read the other way: its targets become the sources. Every source must be covered by its pieces once.
Mapping inverted(const Mapping& mapping);

/// The shape that each source of a table must have: just large enough for its pieces.
std::map<std::string, std::vector<std::int64_t>> source_shapes(const Mapping& mapping);

}  // namespace megatron::families
