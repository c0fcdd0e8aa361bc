#include "megatron/plan/ranks/rank_roles.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

std::optional<RankGrid> grid_of_experts(const RankGrid& grid, const ExpertLayout& experts) {
  const int tp = experts.etp > 0 ? experts.etp : grid.size(Axis::Tp), pp = grid.size(Axis::Pp);
  if (experts.ep == 1 && tp == grid.size(Axis::Tp)) return std::nullopt;
  const int stage = grid.world_size() / pp;
  if (experts.ep < 1 || stage % (tp * experts.ep) != 0)
    throw ConfigError(rule_got_fix("ep * etp must divide the ranks of a pipeline stage.",
                                   concat("ep ", experts.ep, ", etp ", tp, ", ", stage, " ranks per stage"),
                                   "an ep that divides them, such as 1"));
  RankGrid of_experts(tp, experts.ep, stage / (tp * experts.ep), pp, grid.world_size(), grid.order());
  // Both count in mixed radices: where the stages of one pipeline are the same ranks, those of all are.
  if (grid.peers(0, Axis::Pp) != of_experts.peers(0, Axis::Pp))
    throw ConfigError(rule_got_fix("Experts must lie on the ranks of their own pipeline stage.",
                                   concat("ep ", experts.ep, ", etp ", tp, " in the order ", grid.order()),
                                   "the order tp-cp-dp-pp"));
  return of_experts;
}

}  // namespace

RankRoles::RankRoles(const RankGrid& grid, const ExpertLayout& experts)
    : grid_(grid), experts_(grid_of_experts(grid, experts)) {}

Peers RankRoles::peers(const RankGrid& grid, int rank, const std::vector<Axis>& axes) {
  Peers result{.ranks = grid.peers(rank, axes)};
  result.index = static_cast<int>(std::ranges::find(result.ranks, rank) - result.ranks.begin());
  return result;
}

Peers RankRoles::gradients(int rank, Weights weights) const {
  if (weights == Weights::Experts && experts_) return peers(*experts_, rank, {Axis::Dp});
  return peers(grid_, rank, {Axis::Cp, Axis::Dp});
}

Peers RankRoles::state(int rank, bool distributed, Weights weights) const {
  return distributed ? gradients(rank, weights) : Peers{.ranks = {rank}};
}

Peers RankRoles::tensor(int rank, Weights weights) const {
  return peers(weights == Weights::Experts && experts_ ? *experts_ : grid_, rank, {Axis::Tp});
}

Peers RankRoles::experts(int rank) const {
  return experts_ ? peers(*experts_, rank, {Axis::Cp}) : Peers{.ranks = {rank}};
}

Peers RankRoles::expert_copy(int rank) const {
  return experts_ ? peers(*experts_, rank, {Axis::Tp, Axis::Cp}) : tensor(rank);
}

std::vector<std::vector<int>> RankRoles::groups(const Role& role) const {
  std::vector<std::vector<int>> result;
  std::vector<bool> seen(static_cast<std::size_t>(grid_.world_size()));
  for (int rank = 0; rank < grid_.world_size(); ++rank) {
    if (seen[static_cast<std::size_t>(rank)]) continue;
    result.push_back(role(*this, rank).ranks);
    for (const int member : result.back()) seen[static_cast<std::size_t>(member)] = true;
  }
  return result;
}

}  // namespace megatron::plan
