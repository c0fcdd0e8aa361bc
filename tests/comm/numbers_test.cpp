#include "megatron/comm/numbers.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "megatron/comm/threads/local_backend.h"

namespace megatron::comm {
namespace {

/// What rank `r` brings: numbers of which no sum of two is exact.
std::vector<double> brought(int r) { return {0.1 * (r + 1), 1e17 + 3 * r, -1.0 / (r + 3)}; }

TEST(Numbers, AreAddedUpInRankOrderAsScalarsAreAndTheGreatestFound) {
  for (const int size : {1, 2, 5})
    run_ranks(size, [&](const Group& group) {
      const std::vector<double> mine = brought(group.rank());
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max})
        EXPECT_EQ(copy_to_host(reduce_numbers(group, at::tensor(mine, at::kDouble), op))(),
                  group.all_reduce_scalars(mine, op))
            << size << " ranks, rank " << group.rank();
    });
}

TEST(Numbers, ThatAreNotOnOneRankAreNotOnAny) {
  run_ranks(3, [&](const Group& group) {
    const double own = group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max})
      EXPECT_TRUE(std::isnan(copy_to_host(reduce_numbers(group, at::tensor({own}, at::kDouble), op))().front()));
  });
}

}  // namespace
}  // namespace megatron::comm
