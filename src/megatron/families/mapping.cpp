#include "megatron/families/mapping.h"

#include <algorithm>
#include <utility>

namespace megatron::families {
namespace {

using Sizes = std::vector<std::int64_t>;

Sizes reversed_if(bool reverse, Sizes sizes) {
  if (reverse) std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace

Mapping inverted(const Mapping& mapping) {
  Mapping result;
  for (auto& [source, shape] : source_shapes(mapping)) result[source].shape = shape;
  for (const auto& [name, tensor] : mapping) {
    for (const MappedSlice& piece : tensor.pieces) {
      MappedTensor& target = result[piece.source];
      target.transposed = tensor.transposed;
      target.pieces.push_back({name, piece.from, piece.to, reversed_if(tensor.transposed, piece.shape)});
    }
  }
  return result;
}

std::map<std::string, std::vector<std::int64_t>> source_shapes(const Mapping& mapping) {
  std::map<std::string, Sizes> shapes;
  for (const auto& [name, tensor] : mapping) {
    for (const MappedSlice& piece : tensor.pieces) {
      Sizes& shape = shapes.try_emplace(piece.source, piece.from.size(), 0).first->second;
      const Sizes extent = reversed_if(tensor.transposed, piece.shape);
      for (std::size_t d = 0; d < extent.size(); ++d) shape.at(d) = std::max(shape[d], piece.from[d] + extent[d]);
    }
  }
  return shapes;
}

}  // namespace megatron::families
