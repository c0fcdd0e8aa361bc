#pragma once
#include <cstdint>
#include <vector>

#include "megatron/plan/parameters/buffer_layout.h"

// Which part of the buffers of a BufferLayout each data-parallel rank owns with the distributed optimizer (ZeRO stage
// 1, Rajbhandari et al. 2020; the ranges are those of Megatron-LM's): of each bucket an equal slice, without regard to
// where parameters begin and end. It receives the reduced gradients of its slices, keeps optimizer state for them alone
// and updates them; then the slices are gathered.
namespace megatron::plan {

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  Range shifted(std::int64_t by) const { return {begin + by, end + by}; }
  bool operator==(const Range&) const = default;
};

/// What both have; empty (begin = end) where they have nothing in common.
Range intersection(const Range& a, const Range& b);

/// The part of one parameter that lies in a shard, counted from three places.
struct ParameterRange {
  int parameter;  ///< index into the layout's specs
  Range world;    ///< in the buffer
  Range local;    ///< in the shard
  Range param;    ///< in the parameter's slice on this rank, flat
};

/// One rank's part of one bucket.
struct Shard {
  Range world;         ///< in the buffer
  std::int64_t state;  ///< where it begins in buffers that hold this rank's shards alone, one after the other
  std::vector<ParameterRange> parameters;  ///< by position; empty where the shard is padding alone
};

/// A rank's place among those that divide buckets between them.
struct Owner {
  int ranks = 1, rank = 0;

  bool operator==(const Owner&) const = default;
};

/// Those of weights by who holds them (RankRoles::state()).
struct Owners {
  Owner dense, experts;

  const Owner& of(const BufferLayout::Bucket& bucket) const { return bucket.experts ? experts : dense; }
};

/// The shards of a rank, by bucket.
std::vector<Shard> shards(const BufferLayout& layout, const Owners& owners);

/// Elements of them: the same for every rank.
std::int64_t owned_elements(const BufferLayout& layout, const Owners& owners);

/// The shards of `rank` of `num_ranks`, by bucket. With one rank they are the buckets. Throws std::logic_error where a
/// bucket does not divide by num_ranks (sharded_padding() sees to it).
std::vector<Shard> shards(const BufferLayout& layout, int num_ranks, int rank);

/// Elements of all of one rank's shards.
std::int64_t total_size(const std::vector<Shard>& shards);

/// Elements of a parameter's slice on one rank, and their numbers in the full tensor: element i of `param` is number
/// first + (i / run) * stride + i % run.
struct NumberedRange {
  Range param;
  std::int64_t first = 0, run = 1, stride = 1;
};

/// `param`, a range of the slice that `spec` describes, in as few of them as describe it.
std::vector<NumberedRange> numbered_ranges(const ParameterSpec& spec, const Range& param);

/// The ranges of a parameter's slice that are `pieces[i]`, one for each i; one where there are several along the
/// dimensions before split_dim is not possible: only slices along the first dimension have more than one piece.
std::vector<Range> piece_ranges(const ParameterSpec& spec);

}  // namespace megatron::plan
