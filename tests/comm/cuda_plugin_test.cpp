#include "megatron/comm/cuda_plugin.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

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
  EXPECT_THROW(join_nccl(place, 0, std::chrono::seconds(1)), ConfigError);
}

/// What a program of its own, which has run nothing but this test's start, makes of the library that fake_gpu/ is.
class LoadOrder : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static std::string library() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_gpu_hooks.so";
  }
  static void load() {
    try {
      load_cuda_library(library());
      std::exit(at::hasCUDA() && num_cuda_devices() == 3 ? 0 : 1);
    } catch (const ConfigError& error) {
      std::fputs(error.what(), stderr);
      std::exit(3);
    } catch (const std::logic_error& error) {
      std::fputs(error.what(), stderr);
      std::exit(2);
    }
  }
};

TEST_F(LoadOrder, ATestsSeedLeavesItOpenWhetherThereIsAGpu) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EXIT(load(), testing::ExitedWithCode(0), "");
}

TEST_F(LoadOrder, ADriverThatShowsNoGpuIsNamed) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EXIT(
      {
        setenv("FAKE_GPU_NONE", "1", 1);
        load();
      },
      testing::ExitedWithCode(3), "the driver shows this process no GPU");
}

TEST_F(LoadOrder, ALibraryThatComesTooLateIsRefused) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EXIT(
      {
        at::hasCUDA();  // as at::manual_seed() does
        load();
      },
      testing::ExitedWithCode(2), "was asked for CUDA before");
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
