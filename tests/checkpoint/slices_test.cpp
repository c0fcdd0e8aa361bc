#include "megatron/checkpoint/slices/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megatron/base/error.h"

namespace megatron::checkpoint {
namespace {

Box random_box(const std::vector<std::int64_t>& shape, std::mt19937& random) {
  Box box;
  for (const std::int64_t size : shape) {
    const std::int64_t offset = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size + 1));
    box.offset.push_back(offset);
    box.shape.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size - offset + 1)));
  }
  return box;
}

/// The element of the tensor that is element `k` of a box, as a number that names it.
std::int64_t tensor_element(const Box& box, const std::vector<std::int64_t>& shape, std::int64_t k) {
  std::int64_t element = 0, stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    element += (box.offset[d] + k % box.shape[d]) * stride;
    k /= box.shape[d];
    stride *= shape[d];
  }
  return element;
}

TEST(AnyOverlap, IsWhatComparingAllPairsSays) {
  std::mt19937 random(9);
  int with = 0, without = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::int64_t> shape(random() % 4);
    for (std::int64_t& size : shape) size = 1 + static_cast<std::int64_t>(random() % 9);
    std::vector<Box> boxes;
    for (std::size_t i = random() % 5; i-- > 0;) boxes.push_back(random_box(shape, random));
    bool expected = false;
    for (std::size_t i = 0; i < boxes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) expected = expected || overlap(boxes[i], boxes[j]);
    ASSERT_EQ(any_overlap(boxes), expected) << round;
    ++(expected ? with : without);
  }
  EXPECT_GT(with, 400);
  EXPECT_GT(without, 400);
}

TEST(AnyOverlap, OfManySlicesIsFoundWithoutComparingAllPairs) {  // which would take minutes
  constexpr std::int64_t kSlices = 300000;
  std::vector<Box> columns, stairs;
  for (std::int64_t i = 0; i < kSlices; ++i) {
    columns.push_back({{0, i}, {8, 1}});
    stairs.push_back({{i, i}, {kSlices - i, kSlices - i}});  // every pair, along both dimensions
  }
  std::shuffle(columns.begin(), columns.end(), std::mt19937(3));
  EXPECT_FALSE(any_overlap(columns));
  columns.push_back({{7, 5000}, {1, 1}});
  EXPECT_TRUE(any_overlap(columns));
  EXPECT_THROW(any_overlap(stairs), ConfigError);
}

TEST(SharedRuns, CopyEachCommonElementOnceAndToItsPlace) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int64_t> shape(random() % 5);
    for (std::int64_t& size : shape) size = 1 + static_cast<std::int64_t>(random() % 5);
    const Box from = random_box(shape, random), to = random_box(shape, random);
    std::vector<std::int64_t> copied(static_cast<std::size_t>(to.elements()), -1);
    std::int64_t last_from = -1;
    for_each_shared_run(from, to, [&](std::int64_t source, std::int64_t target, std::int64_t count) {
      EXPECT_GT(source, last_from);
      for (std::int64_t k = 0; k < count; ++k) {
        EXPECT_EQ(copied.at(static_cast<std::size_t>(target + k)), -1);
        copied[static_cast<std::size_t>(target + k)] = tensor_element(from, shape, source + k);
      }
      last_from = source + count - 1;
    });
    std::vector<std::int64_t> elements_of_from;
    for (std::int64_t k = 0; k < from.elements(); ++k) elements_of_from.push_back(tensor_element(from, shape, k));
    for (std::int64_t k = 0; k < to.elements(); ++k) {
      const std::int64_t element = tensor_element(to, shape, k);
      const bool common = std::count(elements_of_from.begin(), elements_of_from.end(), element) == 1;
      EXPECT_EQ(copied[static_cast<std::size_t>(k)], common ? element : -1);
    }
  }
}

TEST(SharedRuns, AreOneForRowsOfAMatrixAndOneARowForColumns) {
  const Box whole{{0, 0}, {8, 6}};
  const auto runs = [&](const Box& part) {
    int count = 0;
    for_each_shared_run(whole, part, [&](auto, auto, auto) { ++count; });
    return count;
  };
  EXPECT_EQ(runs({{2, 0}, {3, 6}}), 1);
  EXPECT_EQ(runs({{0, 2}, {8, 2}}), 8);
}

TEST(Box, IsInsideOnlyWhereEveryEdgeIs) {
  const std::vector<std::int64_t> shape = {4, 6};
  EXPECT_TRUE(inside({{0, 0}, {4, 6}}, shape));
  EXPECT_TRUE(inside({{4, 0}, {0, 6}}, shape));
  EXPECT_FALSE(inside({{1, 0}, {4, 6}}, shape));
  EXPECT_FALSE(inside({{-1, 0}, {2, 6}}, shape));
  EXPECT_FALSE(inside({{0}, {4}}, shape));
  EXPECT_FALSE(inside({{1, 0}, {INT64_MAX, 6}}, shape));
}

}  // namespace
}  // namespace megatron::checkpoint
