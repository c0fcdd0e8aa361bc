#include "megatron/base/machine/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

TEST(GpuOfRank, IsTheLocalRankWhereEachHasOne) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(gpu_of_rank({.count = 4}, rank, 4), rank);
    EXPECT_EQ(gpu_of_rank({.count = 8, .named = "0,1,2,3,4,5,6,7"}, rank, 4), rank);
    EXPECT_EQ(gpu_of_rank({.count = 4, .named = "4,5,6,7"}, rank, 4), rank) << "CUDA counts those that are named";
  }
}

TEST(GpuOfRank, IsTheOneThatTheLauncherNamedForTheProcess) {
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(gpu_of_rank({.count = 1, .named = "0"}, rank, 8), 0) << "a cgroup each";
    EXPECT_EQ(gpu_of_rank({.count = 1, .named = std::to_string(rank)}, rank, 8), 0);
    EXPECT_EQ(gpu_of_rank({.count = 1, .named = "GPU-8f6c2b1e"}, rank, 8), 0);
  }
}

TEST(GpuOfRank, ThrowsWhereThereAreFewerThanRanks) {
  const auto message = [](const VisibleGpus& gpus, int rank, int ranks) {
    try {
      gpu_of_rank(gpus, rank, ranks);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(message({.count = 2}, 2, 4), testing::HasSubstr("4 ranks and 2 GPUs"));
  EXPECT_THAT(message({.count = 2}, 0, 4), testing::HasSubstr("start 2 ranks")) << "all of them say so";
  EXPECT_THAT(message({.count = 1}, 0, 2), testing::HasSubstr("2 ranks and 1 GPU on"));
  EXPECT_THAT(message({.count = 0}, 0, 1), testing::HasSubstr("--device cpu"));
  EXPECT_THAT(message({.count = 0, .named = ""}, 0, 1), testing::HasSubstr("CUDA_VISIBLE_DEVICES="));
  EXPECT_THAT(message({.count = 2, .named = "0,1"}, 3, 4), testing::HasSubstr("0,1"));
}

}  // namespace
}  // namespace megatron
