#include "megatron/kernels/runtime.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <vector>

#include "megatron/base/machine/cores.h"
#include "megatron/kernels/cpu/allocator.h"
#include "megatron/kernels/cpu/isa.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace megatron::kernels {
namespace {

/// The heap as libtorch's CPU allocator. Never destroyed: tensors may outlive main().
class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = heap_.allocate(bytes);
    return {data, data, &CachingAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CachingAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  MemoryStats stats() const { return heap_.stats(); }

  static std::atomic<CachingAllocator*>& installed() {
    static std::atomic<CachingAllocator*> allocator = nullptr;
    return allocator;
  }

 private:
  static void release(void* data) { installed().load()->heap_.release(data); }
  cpu::HugePageHeap heap_;
};

/// Reads denormal operands and writes denormal results as zero.
void flush_denormals() {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

/// MKL's vector functions choose their code at the first call, and the MKL of libtorch's wheels (2024.2) does so
/// without a lock: of several threads that call one for the first time at once, one may compute by code of another
/// accuracy, in that call alone, so that a loss differs from run to run. Those that may be used are called here by one
/// thread. (decision 139, https://github.com/pytorch/pytorch/issues/188792)
void choose_vector_functions() {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor ones = at::ones({64}, dtype);
    for (const auto function :
         {at::cos, at::erf, at::erfc, at::exp, at::log, at::log10, at::log2, at::sin, at::sqrt, at::tan, at::tanh})
      function(ones);
  }
}

}  // namespace

void install_caching_allocator() {
  if (CachingAllocator::installed().load() != nullptr) return;
  auto* allocator = new CachingAllocator;
  CachingAllocator::installed().store(allocator);
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

MemoryStats memory_stats() {
  const CachingAllocator* allocator = CachingAllocator::installed().load();
  return allocator != nullptr ? allocator->stats() : MemoryStats{};
}

namespace {

c10::DeviceIndex number_of(at::Device device) {
  return device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

constexpr auto kAllPools = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

HeldMemory held_memory(at::Device device) {
  if (!device.is_cpu()) {
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(number_of(device));
    const auto& held = stats.allocated_bytes[kAllPools];
    return {held.current, held.peak};
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::int64_t total = 0, resident = 0;  // pages
  std::ifstream("/proc/self/statm") >> total >> resident;
  const std::int64_t now = resident * ::sysconf(_SC_PAGESIZE);
  return {now, std::max(now, std::int64_t{usage.ru_maxrss} * 1024)};  // counted apart, and now and then less
}

std::optional<FreeMemory> free_memory(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  const c10::DeviceIndex number = number_of(device);
  try {
    const auto [bytes, total] = allocator->getMemoryInfo(number);
    FreeMemory memory{static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(total)};
    if (allocator->initialized()) {  // before that it has no numbers
      const auto stats = allocator->getDeviceStats(number);
      memory.bytes += stats.reserved_bytes[kAllPools].current - stats.allocated_bytes[kAllPools].current;
    }
    return memory;
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  }
}

void configure_thread(int num_threads) {
  static std::once_flag vector_functions_chosen;
  std::call_once(vector_functions_chosen, choose_vector_functions);
  at::get_num_threads();  // a thread's first call would otherwise later take the number of another thread
  at::set_num_threads(num_threads);
  flush_denormals();
  if (num_threads == 1) return;
#pragma omp parallel num_threads(num_threads)
  flush_denormals();
}

namespace {

/// Threads that are begun without attributes, and so with the affinity of the one that begins them, get this one's.
void let_new_threads_run_on(const std::vector<int>& cores) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const int core : cores) CPU_SET(core, &all);
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  if (pthread_attr_setaffinity_np(&attributes, sizeof all, &all) == 0) pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

void bind_to(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);  // where it is refused, the system still chooses
}

}  // namespace

bool bind_threads(int num_threads, int rank, int ranks) {
  const std::vector<int>& cores = core_numbers();
  const auto count = static_cast<int>(cores.size());
  const bool all_ranks = num_threads * ranks == count, alone = num_threads == count;
  if (num_threads < 2 || count > CPU_SETSIZE || !(all_ranks || alone)) return false;
  let_new_threads_run_on(cores);
  // A rank that has all cores begins with the one that it is on: two programs that share a machine then seldom have the
  // threads that compute most on one.
  const auto here = alone ? std::ranges::find(cores, sched_getcpu()) - cores.begin() : 0;
  const int first = alone ? static_cast<int>(here) : num_threads * rank;
#pragma omp parallel num_threads(num_threads)
  bind_to(cores[static_cast<std::size_t>((first + omp_get_thread_num()) % count)]);
  return true;
}

}  // namespace megatron::kernels
