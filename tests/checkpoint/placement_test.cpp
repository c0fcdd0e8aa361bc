#include "megatron/checkpoint/slices/placement.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

namespace megatron::checkpoint {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// The numbers, in the full tensor, of the elements of a box, in the box's order.
std::vector<std::int64_t> elements(const Box& box, const Shape& shape) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t k = 0; k < box.elements(); ++k) {
    std::int64_t rest = k, number = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      number += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= shape[d];
    }
    numbers.push_back(number);
  }
  return numbers;
}

TEST(RangeOfATensor, IsAPartOfARowWholeRowsAndAPartOfARow) {
  const auto boxes = boxes_of_range({6, 4}, 3, 18);
  ASSERT_EQ(boxes.size(), 3u);
  EXPECT_EQ(boxes[0], (Box{{0, 3}, {1, 1}}));
  EXPECT_EQ(boxes[1], (Box{{1, 0}, {3, 4}}));
  EXPECT_EQ(boxes[2], (Box{{4, 0}, {1, 2}}));
  EXPECT_EQ(boxes_of_range({6, 4}, 4, 12), (std::vector<Box>{{{1, 0}, {2, 4}}}));
  EXPECT_EQ(boxes_of_range({6, 4}, 5, 7), (std::vector<Box>{{{1, 1}, {1, 2}}}));
  EXPECT_EQ(boxes_of_range({9}, 2, 5), (std::vector<Box>{{{2}, {3}}}));
  EXPECT_EQ(boxes_of_range({}, 0, 1), (std::vector<Box>{{}}));
  EXPECT_TRUE(boxes_of_range({6, 4}, 7, 7).empty());
}

TEST(RangeOfATensor, HoldsItsElementsInTheirOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    Shape shape(1 + random() % 4);
    for (std::int64_t& size : shape) size = 1 + static_cast<std::int64_t>(random() % 4);
    const std::int64_t size = product(shape);
    const std::int64_t begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size + 1));
    const std::int64_t end = begin + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size - begin + 1));
    std::vector<std::int64_t> got, wanted(static_cast<std::size_t>(end - begin));
    std::iota(wanted.begin(), wanted.end(), begin);
    const auto boxes = boxes_of_range(shape, begin, end);
    for (const Box& box : boxes)
      for (const std::int64_t number : elements(box, shape)) got.push_back(number);
    EXPECT_EQ(got, wanted);
    EXPECT_LE(boxes.size(), 2 * shape.size() - 1);
  }
}

plan::ParameterSpec spec(Shape shape, int split_dim, std::vector<plan::ShardSlice> pieces) {
  plan::ParameterSpec result;
  result.name = "w";
  result.shape = std::move(shape);
  result.split_dim = split_dim;
  result.pieces = std::move(pieces);
  return result;
}

/// The number, in the full tensor, of each element of a rank's slice, flattened: by the definition of pieces.
std::vector<std::int64_t> numbers_of_slice(const plan::ParameterSpec& of) {
  const Shape local = of.local_shape();
  std::vector<std::int64_t> indices;  // along split_dim
  for (const plan::ShardSlice& piece : of.pieces)
    for (std::int64_t i = 0; i < piece.length; ++i) indices.push_back(piece.offset + i);
  std::vector<std::int64_t> numbers;
  for (std::int64_t k = 0; k < product(local); ++k) {
    std::int64_t rest = k, number = 0, stride = 1;
    for (std::size_t d = local.size(); d-- > 0;) {
      std::int64_t index = rest % local[d];
      rest /= local[d];
      if (static_cast<int>(d) == of.split_dim) index = indices[static_cast<std::size_t>(index)];
      number += index * stride;
      stride *= of.shape[d];
    }
    numbers.push_back(number);
  }
  return numbers;
}

TEST(RangeOfASlice, IsBoxesOfTheFullTensorWithEachElementAtItsPlace) {
  const std::vector<plan::ParameterSpec> specs = {
      spec({12, 5}, -1, {}),
      spec({12, 5}, 0, {{4, 4}}),
      spec({5, 12}, 1, {{3, 6}}),
      spec({12, 5}, 0, {{2, 2}, {8, 2}}),               // gate and up
      spec({24}, 0, {{0, 4}, {8, 4}}),                  // a bias of the same
      spec({5, 12}, 1, {{2, 2}, {8, 3}}),               // pieces along columns
      spec({12, 3}, 0, {{6, 2, 1, 0}, {10, 2, 2, 1}}),  // a copy of somebody's rows
      spec({2, 8, 3}, 1, {{2, 4}}),
  };
  for (const plan::ParameterSpec& of : specs) {
    const std::vector<std::int64_t> numbers = numbers_of_slice(of);
    const std::int64_t rows = of.shape[0] - (of.split_dim == 0 ? 1 : 0);  // the last row of some is padding
    const std::int64_t row_elements = product(of.shape) / of.shape[0];
    const Shape true_shape = [&] {
      Shape shape = of.shape;
      shape[0] = rows;
      return shape;
    }();
    const Shape local = of.local_shape();
    for (std::int64_t begin = 0; begin <= of.local_size(); ++begin) {
      for (std::int64_t end = begin; end <= of.local_size(); ++end) {
        std::map<std::int64_t, std::int64_t> place_of;  // of an element's number, by position in the slice
        for (const PlacedBox& placed : place(of, rows, begin, end)) {
          ASSERT_TRUE(inside(placed.box, true_shape));
          const auto in_box = elements(placed.box, true_shape);
          for (std::int64_t k = 0; k < placed.box.elements(); ++k) {
            std::int64_t rest = k, position = placed.first, stride = 1;  // strides are those of the slice
            for (std::size_t d = local.size(); d-- > 0;) {
              position += rest % placed.box.shape[d] * stride;
              rest /= placed.box.shape[d];
              stride *= local[d];
            }
            ASSERT_TRUE(place_of.emplace(position, in_box[static_cast<std::size_t>(k)]).second);
          }
        }
        std::map<std::int64_t, std::int64_t> wanted;
        for (std::int64_t k = begin; k < end; ++k)
          if (numbers[static_cast<std::size_t>(k)] < rows * row_elements)
            wanted[k] = numbers[static_cast<std::size_t>(k)];
        ASSERT_EQ(place_of, wanted) << begin << " to " << end;
      }
    }
  }
}

TEST(RangeOfASlice, SaysWhichBoxesAreCopies) {
  const auto placed = place(spec({12, 3}, 0, {{6, 2, 1, 0}, {10, 2, 2, 1}}), 12, 0, 12);
  ASSERT_EQ(placed.size(), 2u);
  EXPECT_FALSE(placed[0].is_copy);
  EXPECT_TRUE(placed[1].is_copy);
}

}  // namespace
}  // namespace megatron::checkpoint
