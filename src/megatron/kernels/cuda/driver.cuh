#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/phases/kernel.h"

// Runs a kernel's phases on the GPU: a block's threads at once, a barrier after every phase but the last.
namespace megatron::kernels::cuda {

template <class Kernel, int kFrom, int kTo>
__device__ __forceinline__ void run_range(const typename Kernel::Args& args, const phases::At& at,
                                          typename Kernel::Shared& shared, typename Kernel::Local& local) {
  if constexpr (kFrom < kTo) {
    Kernel::template run<kFrom>(args, at, shared, local);
    if constexpr (kFrom + 1 < Kernel::kPhases) __syncthreads();
    run_range<Kernel, kFrom + 1, kTo>(args, at, shared, local);
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) run_phases(const __grid_constant__ typename Kernel::Args args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  typename Kernel::Local local;
  phases::At at{static_cast<std::int64_t>(blockIdx.x), static_cast<int>(threadIdx.x), 0};
  constexpr int kFirst = Kernel::kRepeatFrom, kEnd = Kernel::kRepeatTo;
  run_range<Kernel, 0, kFirst>(args, at, shared, local);
  if constexpr (kFirst < kEnd) {
    const int repeats = Kernel::repeats(args, at.block);
    for (int i = 0; i < repeats; ++i) {
      at.round = i;
      run_range<Kernel, kFirst, kEnd>(args, at, shared, local);
    }
    at.round = 0;
  }
  run_range<Kernel, kEnd, Kernel::kPhases>(args, at, shared, local);
}

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("a kernel of CUDA, ") + what + ": " + cudaGetErrorString(error));
}

template <class Kernel>
void launch_on_stream(const typename Kernel::Args& args, std::int64_t blocks, void* stream) {
  constexpr std::size_t kShared = std::is_empty_v<typename Kernel::Shared> ? 0 : sizeof(typename Kernel::Shared);
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (blocks == 0) return;
  if constexpr (kShared > kWithoutAsking)
    check(cudaFuncSetAttribute(run_phases<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kShared)),
          "shared memory");
  run_phases<Kernel>
      <<<static_cast<unsigned>(blocks), Kernel::kThreads, kShared, static_cast<cudaStream_t>(stream)>>>(args);
  check(cudaGetLastError(), "launch");
}

}  // namespace megatron::kernels::cuda

/// Compiles a kernel for the launches of operators.cpp.
#define MEGATRON_DEVICE_KERNEL(...)                                                                \
  template void megatron::kernels::cuda::launch_on_stream<megatron::kernels::phases::__VA_ARGS__>( \
      const megatron::kernels::phases::__VA_ARGS__::Args&, std::int64_t, void*);
#define MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(name)             \
  MEGATRON_DEVICE_KERNEL(name<float>)                           \
  MEGATRON_DEVICE_KERNEL(name<double>)                          \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Bf16>) \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Fp16>)
