#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace megatron::corpus {

/// Union-find over 0 … size - 1, which several threads may use at once. The representative of a set is its least
/// member once no unite() is under way, whatever the order in which sets were united.
class DisjointSets {
 public:
  explicit DisjointSets(std::size_t size) : parents_(size) {
    for (std::size_t i = 0; i < size; ++i) parents_[i].store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
  }

  std::uint32_t find(std::uint32_t i) {
    for (;;) {
      std::uint32_t parent = parents_[i].load(std::memory_order_relaxed);
      if (parent == i) return i;
      const std::uint32_t above = parents_[parent].load(std::memory_order_relaxed);
      // Halves the path; it only ever leads to smaller members, so a lost race does no harm.
      if (above != parent) parents_[i].compare_exchange_weak(parent, above, std::memory_order_relaxed);
      i = above;
    }
  }

  void unite(std::uint32_t a, std::uint32_t b) {
    for (;;) {
      a = find(a);
      b = find(b);
      if (a == b) return;
      if (a < b) std::swap(a, b);
      std::uint32_t expected = a;
      if (parents_[a].compare_exchange_strong(expected, b, std::memory_order_relaxed)) return;
    }
  }

 private:
  std::vector<std::atomic<std::uint32_t>> parents_;
};

}  // namespace megatron::corpus
