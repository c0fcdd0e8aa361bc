#include "megatron/plan/parameters/buffer_layout.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "tests/plan/golden_buffers.h"

namespace megatron::plan {
namespace {

std::vector<ParameterSpec> specs_of_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<ParameterSpec> specs;
  for (const std::int64_t size : sizes) specs.push_back({.name = "p" + std::to_string(specs.size()), .shape = {size}});
  return specs;
}

TEST(BufferLayout, EqualsMegatronCoresWithoutAlignment) {
  int compared = 0;
  for (const auto& example : golden("buffers.json")) {
    if (example["ddp"]["use_distributed_optimizer"]) continue;  // pads for its shards
    const auto specs = specs_of(example);
    const bool one_bucket = example.value("stage", 0) > 0;  // its later stages; ours are cut too (decision 35)
    const auto layout =
        buffer_layout(specs, one_bucket ? 0 : example["bucket_size"].get<std::int64_t>(), {.alignment = 1});
    expect_layout(layout, specs, example["buffers"][0]);
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

TEST(BufferLayout, TilesTheBufferInReverseOrder) {
  const auto specs = specs_of_sizes({100, 1, 17, 16, 300, 5, 64});
  for (const std::int64_t bucket_size : {0, 1, 50, 128, 100000})
    for (const std::int64_t alignment : {1, 16, 64}) {
      const auto layout = buffer_layout(specs, bucket_size, {.alignment = alignment});
      std::int64_t at = 0;
      for (std::size_t i = 0; i < specs.size(); ++i) {
        const auto& slot = layout.slots[i];
        EXPECT_EQ(slot.parameter, static_cast<int>(specs.size() - 1 - i));
        EXPECT_EQ(slot.begin % alignment, 0);
        EXPECT_GE(slot.begin, at);
        EXPECT_LT(slot.begin, at + alignment);
        EXPECT_EQ(slot.end - slot.begin, specs[specs.size() - 1 - i].size());
        EXPECT_EQ(&layout.slot_of(slot.parameter), &slot);
        at = slot.end;
      }
      at = 0;
      for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
        const auto& bucket = layout.buckets[b];
        EXPECT_EQ(bucket.begin, at);
        if (b + 1 < layout.buckets.size()) {
          EXPECT_GE(bucket.end - bucket.begin, bucket_size);
        }
        for (const int parameter : bucket.parameters) {
          const auto& slot = layout.slot_of(parameter);
          EXPECT_EQ(slot.bucket, static_cast<int>(b));
          EXPECT_GE(slot.begin, bucket.begin);
          EXPECT_LE(slot.end, bucket.end);
        }
        at = bucket.end;
      }
      EXPECT_EQ(at, layout.size);
      if (bucket_size == 0) {
        EXPECT_EQ(layout.buckets.size(), 1u);
      }
    }
}

TEST(BufferLayout, ClosesABucketAsSoonAsItIsFull) {
  const auto layout = buffer_layout(specs_of_sizes({10, 10, 10, 10, 10}), 20, {.alignment = 1});
  ASSERT_EQ(layout.buckets.size(), 3u);
  EXPECT_EQ(layout.buckets[0].parameters, (std::vector<int>{4, 3}));
  EXPECT_EQ(layout.buckets[2].parameters, (std::vector<int>{0}));
}

TEST(BufferLayout, KeepsStagesInBucketsOfTheirOwn) {
  auto specs = specs_of_sizes({10, 10, 10, 10, 10});
  specs[2].stage = specs[3].stage = 2;
  specs[4].stage = 5;
  for (const std::int64_t bucket_size : {0, 15, 1000}) {
    const auto layout = buffer_layout(specs, bucket_size, {.alignment = 1});
    ASSERT_EQ(layout.buckets.size(), 3u) << bucket_size;
    EXPECT_EQ(layout.buckets[0].parameters, (std::vector<int>{4}));
    EXPECT_EQ(layout.buckets[1].parameters, (std::vector<int>{3, 2}));
    EXPECT_EQ(layout.buckets[0].stage, 5);
    EXPECT_EQ(layout.buckets[1].stage, 2);
    EXPECT_EQ(layout.buckets[2].stage, 0);
    EXPECT_EQ(layout.buckets[2].end, layout.size);
  }
}

TEST(BufferLayout, OfNothingIsEmpty) {
  const auto layout = buffer_layout({}, 100);
  EXPECT_EQ(layout.size, 0);
  EXPECT_TRUE(layout.buckets.empty());
  EXPECT_THROW(layout.slot_of(0), std::out_of_range);
}

TEST(BufferLayout, RefusesANegativeBucketSize) { EXPECT_THROW(buffer_layout({}, -1), ConfigError); }

}  // namespace
}  // namespace megatron::plan
