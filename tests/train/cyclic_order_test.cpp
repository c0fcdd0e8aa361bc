#include "megatron/train/data/cyclic_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/data/mock_dataset.h"
#include "megatron/train/data/batches.h"

namespace megatron::train {
namespace {

std::vector<std::int64_t> positions(const CyclicOrder& order, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = begin; i < end; ++i) samples.push_back(order.at(i));
  return samples;
}

// What Megatron-LM's MegatronPretrainingRandomSampler yields with total_samples 13, micro_batch_size 4
// and data_parallel_size 1.
TEST(CyclicOrder, IsMegatronLmsOfOneRank) {
  const CyclicOrder order(13, 4);
  EXPECT_EQ(positions(order, 0, 12), (std::vector<std::int64_t>{8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6}));
  EXPECT_EQ(positions(order, 12, 24), (std::vector<std::int64_t>{1, 4, 6, 8, 11, 0, 5, 3, 2, 9, 10, 7}));
  EXPECT_EQ(positions(order, 24, 36), (std::vector<std::int64_t>{0, 9, 3, 2, 10, 5, 6, 7, 8, 1, 4, 11}));
  EXPECT_EQ(order.at(5), positions(order, 0, 12)[5]) << "an earlier pass again";
}

TEST(CyclicOrder, HasEverySampleOnceInEachPass) {
  std::vector<std::int64_t> all(7);
  std::iota(all.begin(), all.end(), 0);
  const CyclicOrder order(7, 1);
  for (std::int64_t pass = 0; pass < 3; ++pass) {
    std::vector<std::int64_t> samples = positions(order, 7 * pass, 7 * pass + 7);
    std::ranges::sort(samples);
    EXPECT_EQ(samples, all) << pass;
  }
  EXPECT_THROW(CyclicOrder(3, 4), ConfigError);
}

TEST(CyclicOrder, IsThatOfTheMicrobatches) {
  const auto batches = [] {
    return DatasetBatches(
        std::make_unique<data::MockDataset>(data::MockDatasetSpec{.vocab = 50, .seq_length = 6, .num_samples = 9}), 50,
        at::kFloat);
  };
  const DatasetBatches single = batches();
  DatasetBatches cyclic = batches();
  cyclic.take_cyclically(2);
  const CyclicOrder order(single.size(), 2);
  const std::vector<std::int64_t> ids = {0, single.size() + 1, 3};
  const std::vector<std::int64_t> samples = {order.at(ids[0]), order.at(ids[1]), order.at(ids[2])};
  const auto got = cyclic.get(ids), wanted = single.get(samples);
  EXPECT_TRUE(got.tokens_bs.equal(wanted.tokens_bs));
  EXPECT_TRUE(got.labels_bs.equal(wanted.labels_bs));
}

}  // namespace
}  // namespace megatron::train
