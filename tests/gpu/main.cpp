#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string_view>

#include "megatron/base/machine/gpu.h"
#include "megatron/comm/cuda_plugin.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/parallel/cuda.h"
#include "tests/comm/contract.h"
#include "tests/comm/staging_backend.h"
#include "tests/gpu/rates.h"

// The tests for a GPU as one program, for a machine where nothing can be built (scripts/gpu/run.sh). How fast each
// kernel is: `--rates --cuda` or `--rates --dry`. `--as-rank`: one rank that a test has launched.
namespace {

int as_rank() {
  using namespace megatron::comm;
  const LaunchedRank place = place_from(process_environment()).value();
  const Group world = join_nccl(place, place.local_rank, std::chrono::seconds(60));
  const Group staged(std::make_shared<StagingBackend>(world.backend()));
  for (const contract::Clause& clause : contract::clauses()) clause.body(staged);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string_view first = argc > 1 ? argv[1] : "";
    // Before anything asks ATen for CUDA: the answer holds for the process.
    if (megatron::gpu_present() && first != "--as-rank") megatron::parallel::load_cuda();
    if (first == "--as-rank") return as_rank();
    if (first == "--rates") {
      const bool cuda = argc > 2 && std::string_view(argv[2]) == "--cuda";
      megatron::testing::print_rates(cuda ? at::kCUDA : at::kCPU);
      return 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
