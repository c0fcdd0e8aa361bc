#include "megatron/plan/parameters/shards.h"

#include <algorithm>
#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::plan {

Range intersection(const Range& a, const Range& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<Shard> shards(const BufferLayout& layout, int num_ranks, int rank) {
  return shards(layout, {{num_ranks, rank}, {num_ranks, rank}});
}

std::int64_t owned_elements(const BufferLayout& layout, const Owners& owners) {
  std::int64_t elements = 0;
  for (const BufferLayout::Bucket& bucket : layout.buckets)
    elements += (bucket.end - bucket.begin) / owners.of(bucket).ranks;
  return elements;
}

std::vector<Shard> shards(const BufferLayout& layout, const Owners& owners) {
  for (const auto& [ranks, rank] : {owners.dense, owners.experts})
    if (ranks < 1 || rank < 0 || rank >= ranks) throw std::logic_error(concat("shards: no rank ", rank, " of ", ranks));
  std::vector<Shard> result;
  std::int64_t state = 0;
  std::size_t slot = 0;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const BufferLayout::Bucket& bucket = layout.buckets[b];
    const auto [num_ranks, rank] = owners.of(bucket);
    if ((bucket.end - bucket.begin) % num_ranks != 0)
      throw std::logic_error(
          concat("a bucket of ", bucket.end - bucket.begin, " elements does not divide by ", num_ranks, " ranks"));
    const std::int64_t length = (bucket.end - bucket.begin) / num_ranks;
    const std::int64_t begin = bucket.begin + rank * length;
    Shard shard{.world = {begin, begin + length}, .state = state, .parameters = {}};
    for (; slot < layout.slots.size() && layout.slots[slot].bucket == static_cast<int>(b); ++slot) {
      const BufferLayout::Slot& own = layout.slots[slot];
      const Range world = intersection(shard.world, {own.begin, own.end});
      if (!world.empty())
        shard.parameters.push_back({own.parameter, world, world.shifted(-begin), world.shifted(-own.begin)});
    }
    state += length;
    result.push_back(std::move(shard));
  }
  return result;
}

std::vector<Range> piece_ranges(const ParameterSpec& spec) {
  if (spec.replicated() || spec.pieces.size() <= 1) return {{0, spec.local_size()}};
  if (spec.split_dim != 0)
    throw std::logic_error(spec.name + ": several pieces along another dimension than the first");
  const std::int64_t row = spec.size() / spec.shape[0];
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (const ShardSlice& piece : spec.pieces) {
    ranges.push_back({begin, begin + piece.length * row});
    begin = ranges.back().end;
  }
  return ranges;
}

std::vector<NumberedRange> numbered_ranges(const ParameterSpec& spec, const Range& param) {
  if (param.empty()) return {};
  if (spec.replicated()) return {{param, param.begin, param.size(), param.size()}};
  std::int64_t inner = 1;
  for (std::size_t d = static_cast<std::size_t>(spec.split_dim) + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
  const std::int64_t stride = spec.shape[static_cast<std::size_t>(spec.split_dim)] * inner;
  std::vector<NumberedRange> ranges;
  if (spec.pieces.size() == 1) {
    // Rows of `run` elements, one every `stride`: what is left of the first, whole ones, the begin of the last.
    const std::int64_t run = spec.pieces[0].length * inner, offset = spec.pieces[0].offset * inner;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin / run * stride + offset + begin % run;
      if (end > begin) ranges.push_back({{begin, end}, first, std::min(run, end - begin), stride});
    };
    const std::int64_t whole = std::min((param.begin + run - 1) / run * run, param.end);
    const std::int64_t rest = std::max(param.end / run * run, whole);
    add(param.begin, whole);
    add(whole, rest);
    add(rest, param.end);
    return ranges;
  }
  const std::vector<Range> pieces = piece_ranges(spec);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Range range = intersection(pieces[i], param);
    const std::int64_t first = spec.pieces[i].offset * inner + range.begin - pieces[i].begin;
    if (!range.empty()) ranges.push_back({range, first, range.size(), range.size()});
  }
  return ranges;
}

std::int64_t total_size(const std::vector<Shard>& shards) {
  std::int64_t size = 0;
  for (const Shard& shard : shards) size += shard.world.size();
  return size;
}

}  // namespace megatron::plan
