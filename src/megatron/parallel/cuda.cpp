#include "megatron/parallel/cuda.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdlib>

#include "megatron/base/ranges.h"
#include "megatron/comm/cuda_plugin.h"
#include "megatron/kernels/operators.h"
#include "megatron/kernels/token/token.h"
#include "megatron/plan/parameters/fp8.h"

namespace megatron::parallel {

namespace {

/// Its operators, and whom it would tell of ranges. `library`: "" for the plugin.
void take_operators(const std::string& library) {
  using Table = const kernels::Operators* (*)(std::size_t*);
  std::size_t size = 0;
  const auto* const table = reinterpret_cast<Table>(comm::cuda_plugin_entry("megatron_cuda_operators", library))(&size);
  kernels::set_cuda_operators(*table, size);
  using TokenTable = const kernels::TokenKernels* (*)(std::size_t*);
  const auto* const token =
      reinterpret_cast<TokenTable>(comm::cuda_plugin_entry("megatron_cuda_token_kernels", library))(&size);
  kernels::set_cuda_token_kernels(*token, size);
  using Ranges = const RangeHooks* (*)();
  range_hooks = reinterpret_cast<Ranges>(comm::cuda_plugin_entry("megatron_cuda_ranges", library))();
}

}  // namespace

void load_cuda() {
  configure_cuda();
  comm::load_cuda_plugin();
  take_operators("");
}

void load_cuda_from(const std::string& path) {
  configure_cuda();
  comm::load_cuda_library(path);
  take_operators(path);
}

void configure_cuda() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // read by cuBLAS as it starts: one workspace, one order of sums
  setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 0);  // less is lost between tensors of many sizes
  at::Context& context = at::globalContext();
  // What has no such kernel says so and computes: to end a run there would be worse than a sum in another order.
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);  // a pass over every new tensor, for what is written anyway
  context.setDeterministicCuDNN(false);                    // train.deterministic_mode asks for it
  context.setBenchmarkCuDNN(false);                        // chooses by the clock
  context.setAllowBF16ReductionCuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
}

void require_fp8_units(const plan::Fp8Recipe& recipe, int gpu) {
  using Capability = void (*)(int, int*, int*);
  int major = 0, minor = 0;
  reinterpret_cast<Capability>(comm::cuda_plugin_entry("megatron_cuda_capability"))(gpu, &major, &minor);
  plan::require_fp8_units(recipe, major, minor, at::detail::getCUDAHooks().versionCUDART());
}

}  // namespace megatron::parallel
