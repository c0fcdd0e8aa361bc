#include "megatron/parallel/context.h"

#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::parallel {

ParallelContext::ParallelContext(const plan::RankGrid& grid, comm::Group world, at::Device device)
    : grid_(grid), coord_{}, world_(std::move(world)), device_(device) {
  if (grid_.world_size() != world_.size())
    throw std::invalid_argument(
        rule_got_fix("The grid must hold as many ranks as the world.",
                     concat("a grid of ", grid_.world_size(), " ranks, a world of ", world_.size())));
  coord_ = grid_.coord_of(world_.rank());
  for (std::size_t a = 0; a < plan::kNumAxes; ++a)
    groups_[a] = world_.split(grid_.groups({static_cast<plan::Axis>(a)}));
  model_ = world_.split(grid_.groups({plan::Axis::Tp, plan::Axis::Pp}));
}

std::string rank_name(const plan::RankGrid& grid, int rank) {
  const plan::Coord coord = grid.coord_of(rank);
  const auto index = [&](plan::Axis axis) { return coord[static_cast<std::size_t>(axis)]; };
  return concat("rank ", rank, " (tp ", index(plan::Axis::Tp), ", cp ", index(plan::Axis::Cp), ", dp ",
                index(plan::Axis::Dp), ", pp ", index(plan::Axis::Pp), ")");
}

}  // namespace megatron::parallel
