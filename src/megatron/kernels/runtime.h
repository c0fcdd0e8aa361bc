#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What main() sets up once, before the first tensor and in each worker thread.
namespace megatron::kernels {

/// Installs the caching CPU allocator on huge pages (c10::SetCPUAllocator). Blocks are split and joined; a steady
/// training step maps no memory and takes no page fault. Call once, before the first tensor.
void install_caching_allocator();

struct MemoryStats {
  std::int64_t allocated_bytes = 0;  ///< handed out now
  std::int64_t peak_bytes = 0;       ///< the most ever handed out
  std::int64_t reserved_bytes = 0;   ///< mapped from the system
};
MemoryStats memory_stats();  ///< zeros where the allocator is not installed

/// What is held on `device`: on a CPU by this process, its resident set now and at most so far; else by tensors, as
/// ATen's allocator of that device has counted them. A device without a number is the current one.
struct HeldMemory {
  std::int64_t bytes = 0, peak_bytes = 0;
};
HeldMemory held_memory(at::Device device);

/// Bytes of `device` that this process can still take for tensors, with what its allocator keeps for them, and in all.
/// Nothing for a CPU, and where the allocator does not tell. May begin the device's context in this process.
struct FreeMemory {
  std::int64_t bytes = 0, total_bytes = 0;
};
std::optional<FreeMemory> free_memory(at::Device device);

/// For the calling thread: denormals to zero (in it and in its OpenMP workers) and `num_threads` OpenMP/BLAS threads.
/// Each thread that computes calls it first: the first call has MKL choose its code, in one thread.
void configure_thread(int num_threads);

/// Gives the calling thread and its `num_threads` - 1 OpenMP workers a core each, where the `ranks` ranks that share
/// the cores of this process, of which this is number `rank`, have a thread for every core, or this rank alone has;
/// else nothing is bound, and the system moves threads as it likes. For ranks of several threads: two threads of a rank
/// on one core wait for each other, and a busy neighbour has them put there. Threads that are begun later, by whatever
/// library, may run on all cores. After configure_thread(num_threads). Returns whether threads were bound.
bool bind_threads(int num_threads, int rank, int ranks);

/// "amx" (and AVX512), "avx512_bf16", "avx512", "avx2", "reference": the instruction set that the kernels run on.
/// `force` names one to use instead (tests, --train.kernels); "cuda-emulated" computes by the kernels of CUDA on the
/// host, one of their threads after the other, and matrix products as "auto".
inline constexpr const char* kCudaEmulated = "cuda-emulated";
bool emulates_cuda();
std::string instruction_set();
std::vector<std::string> instruction_sets();  ///< those that this machine has, the one that "auto" chooses first
void force_instruction_set(const std::string& name);

/// What products of float32 matrices may lose: "highest", nothing (on AMX large ones are six of bf16, as exact as one
/// of float32); "high", what three bf16 products on that matrix unit leave (relative error 4e-6 instead of 4e-7), and
/// on CUDA TF32, which reads 10 bits of a mantissa. As in PyTorch "high" permits it: where there is no such unit,
/// products stay what they are. Process-wide (--train.matmul_precision); "highest" at first. Throws ConfigError for
/// other names.
void set_matmul_precision(const std::string& name);
/// What products do on `device`: "high" only where it is permitted and, on a CPU, there is such a unit.
std::string matmul_precision(at::DeviceType device = at::kCPU);

}  // namespace megatron::kernels
