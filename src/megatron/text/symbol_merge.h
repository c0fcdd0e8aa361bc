#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace megatron::text {

/// A part of a piece while its parts are merged: bytes [begin, end) of it.
struct Symbol {
  std::int32_t id = -1;
  std::size_t begin = 0, end = 0;
  std::size_t previous = 0, next = 0;  ///< set by merge_symbols()
  bool frozen = false;                 ///< never merged
};

/// `id` of a symbol that is merged into the one before it.
inline constexpr std::int32_t kGone = -2;

/// What two neighbours become: the smallest rank goes first. No token: id < 0.
struct SymbolPair {
  std::uint32_t rank = 0;
  std::int32_t id = -1;
};

struct SymbolScratch {
  struct Waiting {
    std::uint32_t rank;
    std::int32_t id;
    std::size_t left, size;  // bytes of both
  };
  std::vector<Waiting> heap;
};

/// Merges neighbours until `pair(left symbol, right symbol)` knows none that may be, always the pair of the smallest
/// rank, the leftmost of equals. Costs O(n log n).
template <class Pair>
void merge_symbols(std::vector<Symbol>& symbols, SymbolScratch& scratch, const Pair& pair) {
  constexpr std::size_t kNone = ~std::size_t{0};
  auto& heap = scratch.heap;
  heap.clear();
  const auto later = [](const SymbolScratch::Waiting& a, const SymbolScratch::Waiting& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto add = [&](std::size_t left, std::size_t right) {
    if (left == kNone || right == kNone || symbols[left].frozen || symbols[right].frozen) return;
    const SymbolPair found = pair(symbols[left], symbols[right]);
    if (found.id < 0) return;
    heap.push_back({found.rank, found.id, left,
                    symbols[left].end - symbols[left].begin + symbols[right].end - symbols[right].begin});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = i == 0 ? kNone : i - 1;
    symbols[i].next = i + 1 < symbols.size() ? i + 1 : kNone;
  }
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) add(i, i + 1);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const SymbolScratch::Waiting top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.left];
    if (left.id == kGone || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    if (left.end - left.begin + right.end - right.begin != top.size) continue;
    if (const SymbolPair now = pair(left, right); now.id != top.id) continue;
    left.id = top.id;
    left.end = right.end;
    left.next = right.next;
    right.id = kGone;
    if (left.next != kNone) symbols[left.next].previous = top.left;
    add(left.previous, top.left);
    add(top.left, left.next);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.id == kGone; });
}

}  // namespace megatron::text
