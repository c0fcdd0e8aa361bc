#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/text/pair_queue.h"

namespace megatron::text {

/// A part of a piece while its parts are merged: bytes [begin, end) of it. The last four are set by merge_symbols().
struct Symbol {
  std::int32_t id = -1;
  std::uint32_t begin = 0, end = 0;
  bool frozen = false;  ///< never merged
  std::uint32_t previous = PairQueue::kNone, next = PairQueue::kNone;
  std::uint32_t rank = PairQueue::kNone;  ///< of the pair that begins here
  std::int32_t merged = -1;               ///< what that pair becomes
};

/// What two neighbours become: the smallest rank goes first. No token: id < 0.
struct SymbolPair {
  std::uint32_t rank = 0;
  std::int32_t id = -1;
};

/// Throws ConfigError where a piece is too long for Symbol.
inline void check_mergeable(std::string_view piece) {
  if (piece.size() >= PairQueue::kNone)
    throw ConfigError(
        rule_got_fix("tokenizer: a piece of text must be shorter than 4 GiB", concat(piece.size(), " bytes")));
}

/// Merges neighbours until `pair(left symbol, right symbol)` knows none that may be, always the pair of the smallest
/// rank, the leftmost of equals. `pair` is asked once for each two that become neighbours; its ranks are below `ranks`.
template <class Pair>
void merge_symbols(std::vector<Symbol>& symbols, PairQueue& queue, std::size_t ranks, const Pair& pair) {
  constexpr std::uint32_t kNone = PairQueue::kNone;
  constexpr std::size_t kFew = 32;  // so few are looked through sooner than put in order
  const bool few = symbols.size() <= kFew;
  if (!few) queue.reset(ranks);
  const auto look = [&](std::uint32_t place) {
    Symbol& left = symbols[place];
    left.rank = kNone;
    if (left.next == kNone || left.frozen || symbols[left.next].frozen) return;
    const SymbolPair found = pair(left, symbols[left.next]);
    if (found.id < 0) return;
    left.rank = found.rank;
    left.merged = found.id;
    if (!few) queue.add(found.rank, place);
  };
  const auto take = [&](std::uint32_t& rank, std::uint32_t& place) {
    if (!few) return queue.take(rank, place);
    rank = kNone;
    for (std::uint32_t i = symbols.empty() ? kNone : 0; i != kNone; i = symbols[i].next)
      if (symbols[i].rank < rank) rank = symbols[i].rank, place = i;
    return rank != kNone;
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = i == 0 ? kNone : static_cast<std::uint32_t>(i - 1);
    symbols[i].next = i + 1 < symbols.size() ? static_cast<std::uint32_t>(i + 1) : kNone;
  }
  for (std::size_t i = 0; i < symbols.size(); ++i) look(static_cast<std::uint32_t>(i));
  constexpr std::uint32_t kGone = kNone;  // `begin` of a symbol that is merged into the one before it
  for (std::uint32_t rank = 0, place = 0; take(rank, place);) {
    Symbol& left = symbols[place];
    if (left.rank != rank) continue;  // its pair is another one by now
    Symbol& right = symbols[left.next];
    left.id = left.merged;
    left.end = right.end;
    left.next = right.next;
    right.begin = kGone;
    right.rank = kNone;
    if (left.next != kNone) symbols[left.next].previous = place;
    if (left.previous != kNone) look(left.previous);
    look(place);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.begin == kGone; });
}

}  // namespace megatron::text
