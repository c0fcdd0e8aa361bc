#include "megatron/kernels/runtime.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <omp.h>

#include <atomic>

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

void configure_thread(int num_threads) {
  at::get_num_threads();  // a thread's first call would otherwise later take the number of another thread
  at::set_num_threads(num_threads);
  flush_denormals();
  if (num_threads == 1) return;
#pragma omp parallel num_threads(num_threads)
  flush_denormals();
}

}  // namespace megatron::kernels
