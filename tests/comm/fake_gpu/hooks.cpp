#include <ATen/detail/CUDAHooksInterface.h>

// A library that tells ATen of CUDA as libtorch_cuda does, without any: for the order in which programs load it.
namespace at {

class CUDAHooks final : public CUDAHooksInterface {
 public:
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 3; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
