#include "megatron/comm/cuda_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "as_rank.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/comm/processes/launch.h"

namespace megatron::comm {
namespace {

TEST(GpuPlugin, SaysThatThereIsNoGpu) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT([] { load_cuda_plugin(); }, testing::ThrowsMessage<ConfigError>(testing::HasSubstr("--device cpu")));
  LaunchedRank place;
  place.world_size = 2;
  EXPECT_THROW(join_nccl(place, std::chrono::seconds(1)), ConfigError);
}

// NCCL joins ranks that have a GPU each, as processes.
TEST(NcclContract, HoldsBetweenCudaDevices) {
  if (num_gpus() < 2) GTEST_SKIP() << "two NVIDIA GPUs are needed, here are " << num_gpus();
  const LaunchResult result = launch_processes(num_gpus(), {"/proc/self/exe", "--as-rank", "contract-nccl"});
  EXPECT_EQ(result.exit_code, 0) << result.message;
}

// One GPU suffices to see that the plugin loads and finds its world.
TEST(NcclContract, HoldsForOneCudaDevice) {
  if (num_gpus() < 1) GTEST_SKIP() << "no NVIDIA GPU";
  const LaunchResult result = launch_processes(1, {"/proc/self/exe", "--as-rank", "contract-nccl"});
  EXPECT_EQ(result.exit_code, 0) << result.message;
}

}  // namespace
}  // namespace megatron::comm
