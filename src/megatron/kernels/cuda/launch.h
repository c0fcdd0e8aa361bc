#pragma once
#include <cstdint>

// What operators.cpp, of which no part is compiled by nvcc, knows of kernels: their arguments.
namespace megatron::kernels::cuda {

/// Launches `blocks` blocks of a kernel (phases/kernel.h) on a stream of the current device. Compiled for each kernel
/// in a .cu file. Throws std::runtime_error with what CUDA says.
template <class Kernel>
void launch_on_stream(const typename Kernel::Args& args, std::int64_t blocks, void* stream);

/// The stream that ATen computes on, on the current device.
void* current_stream();

struct DeviceDriver {
  template <class Kernel>
  static void launch(const typename Kernel::Args& args, std::int64_t blocks) {
    launch_on_stream<Kernel>(args, blocks, current_stream());
  }
};

}  // namespace megatron::kernels::cuda
