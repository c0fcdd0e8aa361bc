#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "megatron/base/machine/gpu.h"
#include "megatron/base/ranges.h"
#include "megatron/kernels/operators.h"
#include "megatron/kernels/runtime.h"
#include "megatron/parallel/cuda.h"

// What ATen is told before it computes on a GPU: kept in libtorch_cpu, so that it can be asked without one.
namespace megatron::parallel {
namespace {

class DeviceSettings : public testing::Test {
 protected:
  void TearDown() override {  // other tests of this process compute on the CPU
    at::globalContext().setDeterministicAlgorithms(false, false);
    kernels::set_matmul_precision("highest");
  }
};

TEST_F(DeviceSettings, MakeProductsAndReductionsTheSameInEveryRun) {
  configure_cuda();
  const at::Context& context = at::globalContext();
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicFillUninitializedMemory());
  EXPECT_FALSE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
}

TEST_F(DeviceSettings, RoundNoSumTo16BitsBetweenPartsOfAProduct) {
  configure_cuda();
  const at::Context& context = at::globalContext();
  EXPECT_NE(context.allowBF16ReductionCuBLAS(), at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK);
  EXPECT_NE(context.allowFP16ReductionCuBLAS(), at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK);
  EXPECT_FALSE(context.allowFP16AccumulationCuBLAS());
}

TEST_F(DeviceSettings, HighPrecisionIsTf32AndNothingElseIs) {
  const at::Context& context = at::globalContext();
  kernels::set_matmul_precision("high");
  EXPECT_TRUE(context.allowTF32CuBLAS());
  EXPECT_EQ(kernels::matmul_precision(at::kCUDA), "high");
  kernels::set_matmul_precision("highest");
  EXPECT_FALSE(context.allowTF32CuBLAS());
  EXPECT_EQ(kernels::matmul_precision(at::kCUDA), "highest");
}

std::string fake_plugin() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_gpu_hooks.so";
}

/// In a program of its own: which operators the library that tests/comm/fake_gpu/ is serves once it is loaded.
[[noreturn]] void load_fake_plugin() {
  load_cuda_from(fake_plugin());
  std::string names;
  for (const kernels::OperatorInfo& info : kernels::operator_list())
    if (!info.on_cuda.empty()) names += std::string(info.name) + " " + std::to_string(info.on_cuda.size()) + " dtypes";
  std::fputs(names.c_str(), stderr);
  std::exit(names == "max_abs 4 dtypes" ? 0 : 1);
}

TEST(GpuPlugin, ItsOperatorsAreListedOnceItIsLoaded) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  for (const kernels::OperatorInfo& info : kernels::operator_list()) EXPECT_TRUE(info.on_cuda.empty()) << info.name;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(load_fake_plugin(), testing::ExitedWithCode(0), "max_abs 4 dtypes");
}

/// In a program of its own: operators are called with the plugin that prints ranges.
[[noreturn]] void compute_with_fake_plugin(bool profiler) {
  if (profiler) setenv("FAKE_GPU_PROFILER", "1", 1);
  load_cuda_from(fake_plugin());
  const at::Tensor x = at::ones({2, 4}), w = at::ones({3, 4});
  kernels::linear(x, w);
  kernels::sum_of_squares(x);
  std::exit(range_hooks != nullptr ? 1 : 0);
}

TEST(GpuPlugin, IsToldOfARangeForEachOperatorOnlyWhereAProfilerListens) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(compute_with_fake_plugin(true), testing::ExitedWithCode(1), "<linear></><sum_of_squares></>");
  EXPECT_EXIT(compute_with_fake_plugin(false), testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace megatron::parallel
