#include <ATen/cuda/CUDAContext.h>

namespace megatron::kernels {

/// Looked up by parallel::require_fp8_units(): the compute capability of a GPU of this process.
extern "C" __attribute__((visibility("default"))) void megatron_cuda_capability(int gpu, int* major, int* minor) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(gpu));
  *major = properties.major;
  *minor = properties.minor;
}

}  // namespace megatron::kernels
