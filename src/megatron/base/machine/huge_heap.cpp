#include "megatron/base/machine/huge_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace megatron {

void use_huge_pages_for_heap(std::size_t bytes) {
#ifdef __GLIBC__
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it takes; what is larger gets pages of its own
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(2 * bytes));
  mallopt(M_TOP_PAD, static_cast<int>(bytes));
  void* const data = std::malloc(256 << 10);  // more than is free: the heap grows by as much and the pad
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0)) / kHugePage * kHugePage;
  if (data != nullptr && begin < end && end - begin <= bytes)
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  std::free(data);
#else
  static_cast<void>(bytes);
#endif
}

}  // namespace megatron
