#include "megatron/checkpoint/slices/placement.h"

#include <algorithm>
#include <cstddef>

namespace megatron::checkpoint {
namespace {

/// The range within index `prefix` of the leading dimensions.
void cut(const std::vector<std::int64_t>& shape, std::vector<std::int64_t> prefix, std::int64_t begin, std::int64_t end,
         std::vector<Box>& boxes) {
  if (begin >= end) return;
  const std::size_t d = prefix.size();
  std::int64_t inner = 1;
  for (std::size_t k = d + 1; k < shape.size(); ++k) inner *= shape[k];
  const auto part_of_one = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> longer = prefix;
    longer.push_back(index);
    cut(shape, std::move(longer), from, to, boxes);
  };
  const std::int64_t first_whole = (begin + inner - 1) / inner, last_whole = end / inner;
  if (first_whole > last_whole) return part_of_one(begin / inner, begin % inner, end - begin / inner * inner);
  if (begin % inner != 0) part_of_one(begin / inner, begin % inner, inner);
  if (first_whole < last_whole) {
    Box box{.offset = prefix, .shape = std::vector<std::int64_t>(d, 1)};
    box.offset.push_back(first_whole);
    box.shape.push_back(last_whole - first_whole);
    for (std::size_t k = d + 1; k < shape.size(); ++k) {
      box.offset.push_back(0);
      box.shape.push_back(shape[k]);
    }
    boxes.push_back(std::move(box));
  }
  if (end % inner != 0) part_of_one(last_whole, 0, end % inner);
}

std::int64_t flat_index(const std::vector<std::int64_t>& index, const std::vector<std::int64_t>& shape) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

}  // namespace

std::vector<Box> boxes_of_range(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  if (!shape.empty())
    cut(shape, {}, begin, end, boxes);
  else if (begin < end)
    boxes.push_back({});
  return boxes;
}

std::vector<PlacedBox> place(const plan::ParameterSpec& spec, std::int64_t rows, std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t> local = spec.local_shape();
  std::vector<PlacedBox> placed;
  // `box` lies in the slice and in `piece`, of which index `piece_begin` of the slice is the first.
  const auto add = [&](Box box, bool is_copy, std::int64_t shift) {
    PlacedBox result{.box = {}, .first = flat_index(box.offset, local), .is_copy = is_copy};
    if (!spec.replicated()) box.offset[static_cast<std::size_t>(spec.split_dim)] += shift;
    if (!box.shape.empty()) box.shape[0] = std::min(box.shape[0], rows - box.offset[0]);
    if (!box.shape.empty() && box.shape[0] <= 0) return;
    result.box = std::move(box);
    placed.push_back(std::move(result));
  };
  for (const Box& range : boxes_of_range(local, begin, end)) {
    if (spec.replicated()) add(range, false, 0);
    const auto dim = static_cast<std::size_t>(std::max(spec.split_dim, 0));
    std::int64_t piece_begin = 0;  // in the slice
    for (const plan::ShardSlice& piece : spec.pieces) {
      Box box = range;
      box.offset[dim] = std::max(range.offset[dim], piece_begin);
      box.shape[dim] = std::min(range.offset[dim] + range.shape[dim], piece_begin + piece.length) - box.offset[dim];
      if (box.shape[dim] > 0) add(std::move(box), piece.copy > 0, piece.offset - piece_begin);
      piece_begin += piece.length;
    }
  }
  return placed;
}

}  // namespace megatron::checkpoint
