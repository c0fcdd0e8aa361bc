#include "megatron/kernels/cpu/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/machine/out_of_memory.h"

namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kAlignment = 64, kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallest = 64, kMaxSmall = 4096, kSlab = std::size_t{64} << 10;
constexpr std::size_t kSmallestRest = 4096;  // a free rest below this stays with its block

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// The addresses that the heap may reserve: where a limit leaves few (ulimit -v), others, stacks of threads above all,
/// need as many and at least 1 GiB of them.
std::size_t reserved_bytes() {
  constexpr std::size_t kOthers = std::size_t{1} << 30;
  const std::size_t memory =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto limit = address_limit();
  if (!limit) return 8 * memory;
  const std::size_t free_bytes = limit->free_bytes;
  const std::size_t rest = free_bytes > kOthers ? free_bytes - kOthers : 0;
  return std::min(8 * memory, std::max(std::min(free_bytes / 2, rest), free_bytes / 4));
}

}  // namespace

/// Lies in the 64 bytes before the data of every block.
struct alignas(kAlignment) HugePageHeap::Block {
  std::size_t size;   // with this header
  Block* previous;    // the neighbour that ends where this begins
  std::int64_t used;  // bytes counted as allocated
  int small_class;    // -1: a block of the heap itself
  bool is_free;

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
};

bool HugePageHeap::BySize::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a < b;
}
bool HugePageHeap::BySize::operator()(const Block* a, std::size_t size) const { return a->size < size; }

HugePageHeap::HugePageHeap() {
  for (std::size_t size = round_up(reserved_bytes(), kHugePage); size >= kHugePage;
       size = round_up(size / 2, kHugePage)) {
    void* space = mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space != MAP_FAILED) {
      begin_ = end_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(space), kHugePage));
      limit_ = begin_ + size;
      return;
    }
    if (size == kHugePage) break;
  }
  throw AllocationFailed(kHugePage);
}

HugePageHeap::~HugePageHeap() { munmap(begin_, static_cast<std::size_t>(limit_ - begin_)); }

void* HugePageHeap::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  void* data = nullptr;
  if (bytes <= kMaxSmall) {
    data = allocate_small(static_cast<std::size_t>(std::bit_width((std::max(bytes, kSmallest) - 1) / kSmallest)));
  } else {
    data = allocate_block(round_up(bytes, kAlignment) + sizeof(Block))->data();
  }
  Block* block = Block::of(data);
  block->used = static_cast<std::int64_t>(bytes);
  allocated_bytes_ += block->used;
  peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
  return data;
}

void HugePageHeap::release(void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block* block = Block::of(data);
  allocated_bytes_ -= block->used;
  if (block->small_class >= 0) {
    small_free_[static_cast<std::size_t>(block->small_class)].push_back(data);
  } else {
    release_block(block);
  }
}

MemoryStats HugePageHeap::stats() const {
  const std::lock_guard lock(mutex_);
  return {allocated_bytes_, peak_bytes_, end_ - begin_};
}

void* HugePageHeap::allocate_small(std::size_t small_class) {
  auto& list = small_free_[small_class];
  if (list.empty()) {  // cut a block of the heap into equal parts, which are never joined again
    const std::size_t part = (kSmallest << small_class) + sizeof(Block), parts = kSlab / part;
    auto* at = static_cast<std::byte*>(allocate_block(sizeof(Block) + parts * part)->data());
    for (std::size_t i = 0; i < parts; ++i, at += part) {
      auto* block = new (at) Block{part, nullptr, 0, static_cast<int>(small_class), false};
      list.push_back(block->data());
    }
  }
  void* data = list.back();
  list.pop_back();
  return data;
}

HugePageHeap::Block* HugePageHeap::allocate_block(std::size_t bytes) {
  const auto fit = free_.lower_bound(bytes);
  Block* block = nullptr;
  if (fit != free_.end()) {
    block = *fit;
    free_.erase(fit);
  } else {
    block = grow(bytes);
  }
  block->is_free = false;
  split(block, bytes);
  return block;
}

/// A block of at least `bytes` at the end of the heap, joined with what is free there; not in the free list.
HugePageHeap::Block* HugePageHeap::grow(std::size_t bytes) {
  const bool join = last_ != nullptr && last_->is_free;
  const std::size_t size = round_up(bytes - (join ? last_->size : 0), kHugePage);
  if (size > static_cast<std::size_t>(limit_ - end_) || mprotect(end_, size, PROT_READ | PROT_WRITE) != 0) {
    throw AllocationFailed(size);
  }
  madvise(end_, size, MADV_HUGEPAGE);  // where it is not to be had, small pages do
  if (join) {
    free_.erase(last_);
    last_->size += size;
  } else {
    last_ = new (end_) Block{size, last_, 0, -1, false};
  }
  end_ += size;
  return last_;
}

HugePageHeap::Block* HugePageHeap::next(Block* block) const {
  std::byte* at = reinterpret_cast<std::byte*>(block) + block->size;
  return at == end_ ? nullptr : reinterpret_cast<Block*>(at);
}

void HugePageHeap::split(Block* block, std::size_t bytes) {
  const std::size_t rest = block->size - bytes;
  if (rest < kSmallestRest) return;
  Block* after = next(block);
  block->size = bytes;
  auto* free_block = new (reinterpret_cast<std::byte*>(block) + bytes) Block{rest, block, 0, -1, true};
  (after != nullptr ? after->previous : last_) = free_block;
  free_.insert(free_block);
}

void HugePageHeap::release_block(Block* block) {
  if (Block* after = next(block); after != nullptr && after->is_free) {
    free_.erase(after);
    block->size += after->size;
    if (last_ == after) last_ = block;
  }
  if (Block* before = block->previous; before != nullptr && before->is_free) {
    free_.erase(before);
    before->size += block->size;
    if (last_ == block) last_ = before;
    block = before;
  }
  if (Block* after = next(block); after != nullptr) after->previous = block;
  block->is_free = true;
  free_.insert(block);
}

}  // namespace megatron::kernels::cpu
