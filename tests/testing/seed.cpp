#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "megatron/base/philox.h"

// Linked into every test program that uses torch: each test draws the same random numbers in every run, whichever tests
// run with it. (libtorch seeds itself from the clock.)
namespace {

class SeedEachTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    at::manual_seed(megatron::stream_key(1234, std::string(test.test_suite_name()) + "." + test.name()));
  }
};

[[maybe_unused]] const bool kSeeded = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);  // GoogleTest owns it
  return true;
}();

}  // namespace
