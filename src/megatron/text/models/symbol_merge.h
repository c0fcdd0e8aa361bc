#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/text/models/pair_queue.h"

namespace megatron::text {

/// Room that merging works in, which keeps its capacity; one a thread.
struct MergeRoom {
  std::vector<std::uint32_t> ranks;  // of the pair that begins at each part; PairQueue::kNone: it is not merged
  std::vector<std::uint32_t> previous, next;
  PairQueue pairs;
};

/// Merging a few parts: moving a short array costs less than keeping a queue.
template <class Part, class Rules>
void merge_few(std::vector<Part>& parts, std::vector<std::uint32_t>& all_ranks, const Rules& rules) {
  Part* const part = parts.data();
  std::uint32_t* const ranks = all_ranks.data();
  std::size_t n = parts.size();
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == PairQueue::kNone) break;
    part[best] = rules.join(part[best], part[best + 1], ranks[best]);
    --n;
    std::copy(part + best + 2, part + n + 1, part + best + 1);
    std::copy(ranks + best + 2, ranks + n + 1, ranks + best + 1);
    if (best > 0) ranks[best - 1] = rules.rank(part[best - 1], part[best]);
    ranks[best] = best + 1 < n ? rules.rank(part[best], part[best + 1]) : PairQueue::kNone;
  }
  parts.resize(n);
}

/// Merges every pair of the lowest rank in one sweep from left to right, as long as that is an eighth of all pairs: a
/// text that says the same again and again shrinks by this at the speed of memory. Stops where a merge makes one
/// possible that goes before those to the right; merge_by_queue() finishes. False: no pair is left that may be merged.
template <class Part, class Rules>
bool merge_in_sweeps(std::vector<Part>& parts, std::vector<std::uint32_t>& ranks, const Rules& rules) {
  for (bool in_order = true; in_order && parts.size() > 1;) {
    const std::size_t n = parts.size();
    const std::uint32_t lowest = *std::min_element(ranks.begin(), ranks.end());
    if (lowest == PairQueue::kNone) return false;
    if (static_cast<std::size_t>(std::count(ranks.begin(), ranks.end(), lowest)) < n / 8) return true;
    std::size_t size = 0, at = 0;  // of what is done, and what is next
    while (at < n && in_order) {
      ranks[size] = ranks[at];
      if (ranks[at] != lowest) {
        parts[size++] = parts[at++];
        continue;
      }
      parts[size] = rules.join(parts[at], parts[at + 1], lowest);
      at += 2;
      if (size > 0) ranks[size - 1] = rules.rank(parts[size - 1], parts[size]);
      ranks[size] = at < n ? rules.rank(parts[size], parts[at]) : PairQueue::kNone;
      in_order = ranks[size] > lowest && (size == 0 || ranks[size - 1] > lowest);
      ++size;
    }
    const auto move_rest = [&](auto& all) {
      std::copy(all.begin() + static_cast<std::ptrdiff_t>(at), all.end(),
                all.begin() + static_cast<std::ptrdiff_t>(size));
      all.resize(size + n - at);
    };
    move_rest(parts);
    move_rest(ranks);
  }
  return parts.size() > 1;
}

/// A linked list of the parts, and their pairs by rank. A place is out of date where its part's rank changed.
template <class Part, class Rules>
void merge_by_queue(std::vector<Part>& parts, MergeRoom& room, std::size_t ranks_below, const Rules& rules) {
  constexpr std::uint32_t kNone = PairQueue::kNone;
  const auto n = static_cast<std::uint32_t>(parts.size());
  std::vector<std::uint32_t>&ranks = room.ranks, &previous = room.previous, &next = room.next;
  PairQueue& pairs = room.pairs;
  previous.resize(n);
  next.resize(n);
  pairs.reset(ranks_below);
  for (std::uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 < n ? i + 1 : kNone;
    if (ranks[i] != kNone) pairs.add(ranks[i], i);
  }
  const auto look = [&](std::uint32_t i) {
    ranks[i] = next[i] == kNone ? kNone : rules.rank(parts[i], parts[next[i]]);
    if (ranks[i] != kNone) pairs.add(ranks[i], i);
  };
  for (std::uint32_t rank = 0, i = 0; pairs.take(rank, i);) {
    if (ranks[i] != rank) continue;
    const std::uint32_t gone = next[i];
    parts[i] = rules.join(parts[i], parts[gone], rank);
    ranks[gone] = kNone;
    next[i] = next[gone];
    if (next[i] != kNone) previous[next[i]] = i;
    if (previous[i] != kNone) look(previous[i]);
    look(i);
  }
  std::size_t size = 0;
  for (std::uint32_t i = n == 0 ? kNone : 0; i != kNone; i = next[i]) parts[size++] = parts[i];
  parts.resize(size);
}

/// Merges neighbours until none may be, always the pair of the smallest rank, the leftmost of equals.
/// `room.ranks` holds the ranks at first, which are below `ranks_below`. `rules.rank(left, right)` is asked once for
/// each two that become neighbours (PairQueue::kNone: they stay), `rules.join(left, right, rank)` is what they become.
template <class Part, class Rules>
void merge_parts(std::vector<Part>& parts, MergeRoom& room, std::size_t ranks_below, const Rules& rules) {
  constexpr std::size_t kFew = 48;
  if (parts.size() <= kFew) return merge_few(parts, room.ranks, rules);
  if (merge_in_sweeps(parts, room.ranks, rules)) merge_by_queue(parts, room, ranks_below, rules);
}

/// A part of a piece, bytes [begin, end) of it, with what its pair becomes.
struct Symbol {
  std::int32_t id = -1;
  std::uint32_t begin = 0, end = 0;
  std::int32_t merged = -1;  ///< set by merge_symbols()
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

/// merge_parts() of symbols; `pair(left, right)` is their SymbolPair.
template <class Pair>
void merge_symbols(std::vector<Symbol>& symbols, MergeRoom& room, std::size_t ranks_below, const Pair& pair) {
  struct Rules {
    const Pair& pair;
    std::uint32_t rank(Symbol& left, const Symbol& right) const {
      const SymbolPair found = pair(left, right);
      left.merged = found.id;
      return found.id < 0 ? PairQueue::kNone : found.rank;
    }
    Symbol join(const Symbol& left, const Symbol& right, std::uint32_t) const {
      return {.id = left.merged, .begin = left.begin, .end = right.end};
    }
  };
  const Rules rules{pair};
  room.ranks.resize(symbols.size());
  for (std::size_t i = 0; i < symbols.size(); ++i)
    room.ranks[i] = i + 1 < symbols.size() ? rules.rank(symbols[i], symbols[i + 1]) : PairQueue::kNone;
  merge_parts(symbols, room, ranks_below, rules);
}

}  // namespace megatron::text
