#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/cuda/warp.cuh"
#include "megatron/kernels/phases/kernel.h"

// Runs a kernel's phases on the GPU: a block's threads, or warps, at once, a barrier after every phase but the last.
namespace megatron::kernels::cuda {

template <class Kernel, int kFrom, int kTo, class Local>
__device__ __forceinline__ void run_range(const typename Kernel::Args& args, const phases::At& at,
                                          typename Kernel::Shared& shared, Local& local) {
  if constexpr (kFrom < kTo) {
    Kernel::template run<kFrom>(args, at, shared, local);
    if constexpr (kFrom + 1 < Kernel::kPhases) __syncthreads();
    run_range<Kernel, kFrom + 1, kTo>(args, at, shared, local);
  }
}

template <class Kernel>
constexpr int resident() {
  if constexpr (requires { Kernel::kResident; }) return Kernel::kResident;
  return 0;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, resident<Kernel>())
    run_phases(const __grid_constant__ typename Kernel::Args args) {
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

/// Of kernels whose phases are run by warps.
template <class Kernel>
__global__ void __launch_bounds__(32 * Kernel::kWarps, Kernel::kBlocks)
    run_warps(const __grid_constant__ typename Kernel::Args args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  typename Kernel::template Local<DeviceWarp> local;
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);  // the same in all of its lanes
  phases::At at{static_cast<std::int64_t>(blockIdx.x), warp, 0};
  run_range<Kernel, 0, Kernel::kRepeatFrom>(args, at, shared, local);
  if constexpr (Kernel::kRepeatFrom < Kernel::kRepeatTo) {
    const int rounds = local.rounds;
    for (int i = 0; i < rounds; ++i) {
      at.round = i;
      run_range<Kernel, Kernel::kRepeatFrom, Kernel::kRepeatTo>(args, at, shared, local);
    }
    at.round = 0;
  }
  run_range<Kernel, Kernel::kRepeatTo, Kernel::kPhases>(args, at, shared, local);
}

/// A kernel's entry and how many threads a block has.
template <class Kernel>
struct Entry {
  static constexpr auto kFunction = run_phases<Kernel>;
  static constexpr int kThreads = Kernel::kThreads;
};
template <phases::OfWarps Kernel>
struct Entry<Kernel> {
  static constexpr auto kFunction = run_warps<Kernel>;
  static constexpr int kThreads = 32 * Kernel::kWarps;
};

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("a kernel of CUDA, ") + what + ": " + cudaGetErrorString(error));
}

inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "device");
  return device;
}

/// Whether a kernel may begin before the one before it has ended: from Hopper on.
inline bool launches_may_overlap() {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current_device()), "capability");
  return major >= 9;
}

template <class Kernel>
void launch_on_stream(const typename Kernel::Args& args, std::int64_t blocks, void* stream) {
  constexpr std::size_t kShared = std::is_empty_v<typename Kernel::Shared> ? 0 : sizeof(typename Kernel::Shared);
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (blocks == 0) return;
  constexpr auto kEntry = Entry<Kernel>::kFunction;
  constexpr int kThreads = Entry<Kernel>::kThreads;
  const std::size_t bytes = kShared + static_cast<std::size_t>(phases::extra_bytes_of<Kernel>(args));
  if (bytes > kWithoutAsking) {
    thread_local std::map<int, std::size_t> granted_by_device;  // what a kernel may take is said to each
    std::size_t& granted = granted_by_device[current_device()];
    if (bytes > granted)
      check(cudaFuncSetAttribute(kEntry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
            "shared memory");
    granted = std::max(granted, bytes);
  }
  if constexpr (requires { Kernel::kOverlaps; }) {
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &overlap;
    config.numAttrs = launches_may_overlap() ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kEntry, args), "launch");
  } else {
    kEntry<<<static_cast<unsigned>(blocks), kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(args);
    check(cudaGetLastError(), "launch");
  }
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
