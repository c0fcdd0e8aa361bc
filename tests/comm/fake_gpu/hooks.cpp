#include <ATen/detail/CUDAHooksInterface.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "megatron/base/ranges.h"
#include "megatron/kernels/operators.h"
#include "megatron/kernels/token/token.h"

// A library that tells ATen of CUDA as libtorch_cuda does, without any: for the order in which programs load it. With
// FAKE_GPU_NONE it is one whose driver finds no GPU. And tables as the plugin has them, of one operator; ranges, which
// it prints, only with FAKE_GPU_PROFILER.
namespace at {

class CUDAHooks final : public CUDAHooksInterface {
 public:
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return std::getenv("FAKE_GPU_NONE") == nullptr; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 3; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

namespace megatron::kernels {

extern "C" __attribute__((visibility("default"))) const Operators* megatron_cuda_operators(std::size_t* size) {
  static const Operators table{.max_abs = [](at::TensorList parts) { return parts.front(); }};
  *size = sizeof table;
  return &table;
}

extern "C" __attribute__((visibility("default"))) const TokenKernels* megatron_cuda_token_kernels(std::size_t* size) {
  static const TokenKernels table{};
  *size = sizeof table;
  return &table;
}

extern "C" __attribute__((visibility("default"))) const RangeHooks* megatron_cuda_ranges() {
  static constexpr RangeHooks hooks{.begin = [](const char* name) { std::fprintf(stderr, "<%s>", name); },
                                    .end = [] { std::fputs("</>", stderr); }};
  return std::getenv("FAKE_GPU_PROFILER") != nullptr ? &hooks : nullptr;
}

}  // namespace megatron::kernels
