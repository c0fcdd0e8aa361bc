#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <string>

#include "megatron/comm/group.h"
#include "megatron/plan/rank_grid.h"

namespace megatron::parallel {

/// "rank 13 (tp 1, cp 0, dp 2, pp 1)".
std::string rank_name(const plan::RankGrid& grid, int rank);

/// Where this rank stands and whom it may talk to. Built once, immutable, passed down by const reference to builders;
/// a module stores only the group it talks to. There is no global instance.
class ParallelContext {
 public:
  /// Collective over `world`: every rank calls it with the same grid.
  ParallelContext(const plan::RankGrid& grid, comm::Group world, at::Device device);

  const plan::RankGrid& grid() const { return grid_; }
  int rank() const { return world_.rank(); }
  int index(plan::Axis axis) const { return coord_[static_cast<std::size_t>(axis)]; }
  bool is_first(plan::Axis axis) const { return index(axis) == 0; }
  bool is_last(plan::Axis axis) const { return index(axis) == grid_.size(axis) - 1; }

  const comm::Group& world() const { return world_; }
  const comm::Group& group(plan::Axis axis) const { return groups_[static_cast<std::size_t>(axis)]; }
  const comm::Group& model() const { return model_; }  ///< tp x pp: the ranks that hold one copy of the model
  at::Device device() const { return device_; }

  /// The prefix of every error that leaves the rank.
  std::string name() const { return rank_name(grid_, rank()); }

 private:
  plan::RankGrid grid_;
  plan::Coord coord_;
  comm::Group world_;
  std::array<comm::Group, plan::kNumAxes> groups_;
  comm::Group model_;
  at::Device device_;
};

}  // namespace megatron::parallel
