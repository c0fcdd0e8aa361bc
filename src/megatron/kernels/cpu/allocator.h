#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "megatron/kernels/runtime.h"

namespace megatron::kernels::cpu {

/// One contiguous heap of huge pages that grows at its end and never shrinks. Blocks of any size are found by best fit,
/// split, and joined with their free neighbours, so that the heap stays close to the most that was ever in use. Small
/// blocks come from free lists by size. Blocks are aligned to 64 bytes. Thread-safe.
class HugePageHeap {
 public:
  /// Reserves address space for eight times the machine's memory; nothing is mapped yet.
  HugePageHeap();
  HugePageHeap(const HugePageHeap&) = delete;
  HugePageHeap& operator=(const HugePageHeap&) = delete;
  ~HugePageHeap();

  /// Throws AllocationFailed (a std::bad_alloc) when the system gives no more memory.
  void* allocate(std::size_t bytes);
  void release(void* data);
  MemoryStats stats() const;

 private:
  struct Block;
  struct BySize {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const;
    bool operator()(const Block* a, std::size_t size) const;
  };
  static constexpr std::size_t kSmallClasses = 7;  // 64 bytes to 4 KB by powers of two

  void* allocate_small(std::size_t small_class);
  Block* allocate_block(std::size_t bytes);
  void release_block(Block* block);
  Block* grow(std::size_t bytes);
  void split(Block* block, std::size_t bytes);
  Block* next(Block* block) const;

  mutable std::mutex mutex_;
  std::byte *begin_ = nullptr, *end_ = nullptr, *limit_ = nullptr;  // mapped: [begin, end); reserved: [begin, limit)
  Block* last_ = nullptr;                                           // the block that ends at end_
  std::set<Block*, BySize> free_;
  std::array<std::vector<void*>, kSmallClasses> small_free_;
  std::int64_t allocated_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace megatron::kernels::cpu
