#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/schedule/placement.h"

namespace megatron::plan {

/// Axes of the process grid. The default order is "tp-cp-dp-pp", fastest-varying first (tp neighbours share a node).
enum class Axis : std::uint8_t { Tp, Cp, Dp, Pp };
inline constexpr std::size_t kNumAxes = 4;

/// Position of one rank along every axis, indexed by Axis.
using Coord = std::array<int, kNumAxes>;

/// World layout as arithmetic: no processes, no environment variables, no torch.
class RankGrid {
 public:
  /// The grid of one rank.
  RankGrid() : RankGrid(1, 1, 1, 1, 1) {}
  /// Throws ConfigError unless tp * cp * dp * pp == world_size and `order` names each axis once.
  RankGrid(int tp, int cp, int dp, int pp, int world_size, const std::string& order = "tp-cp-dp-pp");

  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int world_size() const;
  /// Ranks that read different samples of a batch: each microbatch of the run is that many of a rank's (dp).
  int sample_shares() const { return size(Axis::Dp); }
  /// Ranks that have the same samples, each with its part of their tokens (cp).
  int sequence_shares() const { return size(Axis::Cp); }
  std::string order() const;  ///< of the axes, as the constructor takes it
  Coord coord_of(int rank) const;
  int rank_of(const Coord& coord) const;

  /// Ranks that differ from `rank` only along `axis`, in axis order.
  std::vector<int> peers(int rank, Axis axis) const { return peers(rank, std::vector<Axis>{axis}); }
  /// Ranks that differ from `rank` only along `axes`, ascending: e.g. {Tp, Pp} is the model-parallel group.
  std::vector<int> peers(int rank, const std::vector<Axis>& axes) const;
  /// The partition of the world into the groups of `axes`, ordered by their first rank.
  std::vector<std::vector<int>> groups(const std::vector<Axis>& axes) const;
  /// The ranks of each pipeline that hold its first and its last stage, where `placement` puts them: they share the
  /// tied embedding. One entry where one rank holds both. Ranks in no group hold neither.
  std::vector<std::vector<int>> embedding_groups(const schedule::Placement& placement) const;
  /// The rank of each pipeline that holds its first stage, and so the position embedding.
  std::vector<std::vector<int>> position_embedding_groups(const schedule::Placement& placement) const;

 private:
  std::array<int, kNumAxes> sizes_;
  std::array<Axis, kNumAxes> order_;  ///< fastest-varying first
};

/// "rank 13 (tp 1, cp 0, dp 2, pp 1)".
std::string rank_name(const RankGrid& grid, int rank);
/// "tp 2 x pp 1 x dp 4", with context parallelism "tp 2 x cp 2 x pp 1 x dp 4".
std::string sizes_text(const RankGrid& grid);

}  // namespace megatron::plan
