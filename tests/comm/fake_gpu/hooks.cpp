#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdlib>

// A library that tells ATen of CUDA as libtorch_cuda does, without any: for the order in which programs load it. With
// FAKE_GPU_NONE it is one whose driver finds no GPU.
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
