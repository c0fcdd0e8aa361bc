#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>

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

}  // namespace
}  // namespace megatron::parallel
