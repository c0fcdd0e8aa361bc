#include "megatron/base/ranges.h"

#if __has_include(<nvtx3/nvToolsExt.h>)  // a package of its own, where CUDA is not installed as a whole
#include <nvtx3/nvToolsExt.h>
#define MEGATRON_NVTX 1
#endif

namespace megatron::kernels {

/// Looked up by parallel::load_cuda(): ranges for Nsight Systems and other tools that NVTX loads; null without one, and
/// where the plugin was compiled without NVTX.
extern "C" __attribute__((visibility("default"))) const RangeHooks* megatron_cuda_ranges() {
#ifdef MEGATRON_NVTX
  static constexpr RangeHooks hooks{.begin = [](const char* name) { nvtxRangePushA(name); },
                                    .end = [] { nvtxRangePop(); }};
  // The first call has NVTX look for a tool; without one a range is not counted.
  if (nvtxRangePushA("megatron_cuda") == NVTX_NO_PUSH_POP_TRACKING) return nullptr;
  nvtxRangePop();
  return &hooks;
#else
  return nullptr;
#endif
}

}  // namespace megatron::kernels
