#include "megatron/data/samples/pack.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace megatron::data {
namespace {

/// A set of the integers 0 … top: insert, erase and the least member at or above a number, in steps of 64.
class RoomSet {
 public:
  explicit RoomSet(std::int64_t top) {
    std::size_t words = static_cast<std::size_t>(top) / 64 + 1;
    for (;; words = words / 64 + 1) {
      levels_.emplace_back(words, 0);
      if (words == 1) break;
    }
  }

  void insert(std::size_t value) {
    for (auto& level : levels_) {
      level[value / 64] |= std::uint64_t{1} << value % 64;
      value /= 64;
    }
  }

  void erase(std::size_t value) {
    for (auto& level : levels_) {
      level[value / 64] &= ~(std::uint64_t{1} << value % 64);
      if (level[value / 64] != 0) return;
      value /= 64;
    }
  }

  /// The least member >= value; -1 where there is none.
  std::int64_t at_or_above(std::size_t value) const {
    for (std::size_t height = 0; height < levels_.size(); ++height) {
      if (value / 64 >= levels_[height].size()) return -1;
      const std::uint64_t rest = levels_[height][value / 64] >> value % 64;
      if (rest != 0) {
        value += static_cast<std::size_t>(std::countr_zero(rest));
        for (std::size_t down = height; down-- > 0;)
          value = 64 * value + static_cast<std::size_t>(std::countr_zero(levels_[down][value]));
        return static_cast<std::int64_t>(value);
      }
      value = value / 64 + 1;
    }
    return -1;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // a bit of a higher level: its 64 bits below are not all 0
};

struct Pieces {
  std::vector<std::int32_t> sequence, first, size;
};

/// All pieces in the order of their sequences.
Pieces cut(const IndexedDataset& data, std::span<const std::int32_t> order, std::int64_t seq_length, Packing packing) {
  Pieces pieces;
  for (const std::int32_t sequence : order) {
    const std::int64_t places = data.length(sequence) - 1;
    const std::int64_t end = packing == Packing::Alone ? std::min<std::int64_t>(places, 1) : places;
    for (std::int64_t first = 0; first < end; first += seq_length) {
      pieces.sequence.push_back(sequence);
      pieces.first.push_back(static_cast<std::int32_t>(first));
      pieces.size.push_back(static_cast<std::int32_t>(std::min(seq_length, places - first)));
    }
  }
  return pieces;
}

/// The numbers of pieces from the longest to the shortest, equal ones as they stand: a counting sort.
std::vector<std::int64_t> by_size(const std::vector<std::int32_t>& sizes, std::int64_t longest) {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(longest) + 2, 0), sorted(sizes.size());
  for (const std::int32_t size : sizes) ++begin[static_cast<std::size_t>(longest - size) + 1];
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  for (std::size_t i = 0; i < sizes.size(); ++i)
    sorted[static_cast<std::size_t>(begin[static_cast<std::size_t>(longest - sizes[i])]++)] =
        static_cast<std::int64_t>(i);
  return sorted;
}

constexpr std::int64_t kNone = -1;

/// Of each piece, its sample.
std::vector<std::int64_t> best_fit(const std::vector<std::int32_t>& sizes, const std::vector<std::int64_t>& sorted,
                                   std::int64_t seq_length, std::int64_t& samples) {
  std::vector<std::int64_t> sample_of(sizes.size());
  RoomSet rooms(seq_length);                                                       // that some sample has left
  std::vector<std::int64_t> top(static_cast<std::size_t>(seq_length) + 1, kNone);  // of room r, the last such sample
  std::vector<std::int64_t> below;                                                 // of each sample, the one before
  samples = 0;
  for (const std::int64_t piece : sorted) {
    const std::int64_t size = sizes[static_cast<std::size_t>(piece)];
    std::int64_t room = rooms.at_or_above(static_cast<std::size_t>(size)), sample = samples;
    if (room < 0) {
      room = seq_length;
      below.push_back(kNone);
      ++samples;
    } else {
      auto& stack = top[static_cast<std::size_t>(room)];
      sample = stack;
      stack = below[static_cast<std::size_t>(sample)];
      if (stack == kNone) rooms.erase(static_cast<std::size_t>(room));
    }
    sample_of[static_cast<std::size_t>(piece)] = sample;
    const std::int64_t left = room - size;
    if (left == 0) continue;
    auto& stack = top[static_cast<std::size_t>(left)];
    if (stack == kNone) rooms.insert(static_cast<std::size_t>(left));
    below[static_cast<std::size_t>(sample)] = stack;
    stack = sample;
  }
  return sample_of;
}

}  // namespace

SequenceSlice piece_at(std::int64_t sequence, std::int64_t first, std::int64_t length, std::int64_t seq_length) {
  return {sequence, first, std::min(seq_length, length - 1 - first)};
}

PackedPass pack(const IndexedDataset& data, std::span<const std::int32_t> order, std::int64_t seq_length,
                Packing packing) {
  Pieces pieces = cut(data, order, seq_length, packing);
  PackedPass pass;
  if (packing == Packing::Alone) {
    for (std::size_t i = 0; i <= pieces.sequence.size(); ++i) pass.begins.push_back(static_cast<std::int64_t>(i));
    pass.sequence = std::move(pieces.sequence);
    pass.first = std::move(pieces.first);
    return pass;
  }
  const std::vector<std::int64_t> sorted = by_size(pieces.size, seq_length);
  std::int64_t samples = 0;
  const std::vector<std::int64_t> sample_of = best_fit(pieces.size, sorted, seq_length, samples);
  pass.begins.assign(static_cast<std::size_t>(samples) + 1, 0);
  for (const std::int64_t sample : sample_of) ++pass.begins[static_cast<std::size_t>(sample) + 1];
  for (std::size_t i = 1; i < pass.begins.size(); ++i) pass.begins[i] += pass.begins[i - 1];
  pass.sequence.resize(sorted.size());
  pass.first.resize(sorted.size());
  std::vector<std::int64_t> next(pass.begins.begin(), pass.begins.end() - 1);
  for (const std::int64_t piece : sorted) {
    const auto from = static_cast<std::size_t>(piece);
    const auto to = static_cast<std::size_t>(next[static_cast<std::size_t>(sample_of[from])]++);
    pass.sequence[to] = pieces.sequence[from];
    pass.first[to] = pieces.first[from];
  }
  return pass;
}

}  // namespace megatron::data
