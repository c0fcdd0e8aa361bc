#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>

#include "megatron/base/philox.h"

// Linked into every test program that uses torch: each test draws the same random numbers in every run, whichever tests
// run with it. (libtorch seeds itself from the clock.) The CPU's generator alone: at::manual_seed() asks whether there
// is CUDA, and the answer holds for the process, also where the plugin is loaded later.
namespace {

class SeedEachTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(megatron::stream_key(1234, std::string(test.test_suite_name()) + "." + test.name()));
  }
};

[[maybe_unused]] const bool kSeeded = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);  // GoogleTest owns it
  return true;
}();

}  // namespace
