#include "megatron/base/ranges.h"

#include <nvtx3/nvToolsExt.h>

namespace megatron::kernels {

/// Looked up by parallel::load_cuda(): ranges for Nsight Systems and other tools that NVTX loads; null without one.
extern "C" __attribute__((visibility("default"))) const RangeHooks* megatron_cuda_ranges() {
  static constexpr RangeHooks hooks{.begin = [](const char* name) { nvtxRangePushA(name); },
                                    .end = [] { nvtxRangePop(); }};
  // The first call has NVTX look for a tool; without one a range is not counted.
  if (nvtxRangePushA("megatron_cuda") == NVTX_NO_PUSH_POP_TRACKING) return nullptr;
  nvtxRangePop();
  return &hooks;
}

}  // namespace megatron::kernels
