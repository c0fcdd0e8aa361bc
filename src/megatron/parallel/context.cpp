#include "megatron/parallel/context.h"

#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/comm/activity.h"

namespace megatron::parallel {

ParallelContext::ParallelContext(const plan::RankGrid& grid, comm::Group world, at::Device device,
                                 const plan::ExpertLayout& experts)
    : grid_(grid), world_(std::move(world)), device_(device) {
  using plan::RankRoles;
  if (grid_.world_size() != world_.size())
    throw std::invalid_argument(
        rule_got_fix("The grid must hold as many ranks as the world.",
                     concat("a grid of ", grid_.world_size(), " ranks, a world of ", world_.size())));
  const RankRoles roles(grid_, experts);
  const auto group_of = [&](const char* name, const RankRoles::Role& role) {
    comm::Group group = world_.split(roles.groups(role));
    comm::name_observed(group, name);
    return group;
  };
  tensor_ = group_of("tensor", [](const RankRoles& r, int rank) { return r.tensor(rank); });
  pipeline_ = group_of("pipeline", [](const RankRoles& r, int rank) { return r.pipeline(rank); });
  model_ = group_of("model", [](const RankRoles& r, int rank) { return r.model(rank); });
  samples_ = group_of("data", [](const RankRoles& r, int rank) { return r.samples(rank); });
  const bool same = roles.samples(rank()).ranks == roles.gradients(rank()).ranks;  // on every rank or on none
  gradients_ = same ? samples_ : group_of("gradients", [](const RankRoles& r, int rank) { return r.gradients(rank); });
  if (grid_.sequence_shares() > 1)
    sequence_ = group_of("sequence", [](const RankRoles& r, int rank) { return r.sequence(rank); });
  expert_gradients_ = gradients_;
  expert_slices_ = tensor_;
  if (!roles.experts_apart()) return;
  experts_ = group_of("experts", [](const RankRoles& r, int rank) {
    return r.split_otherwise() ? r.expert_copy(rank) : r.experts(rank);
  });
  if (roles.split_otherwise())
    expert_slices_ =
        group_of("expert slices", [](const RankRoles& r, int rank) { return r.tensor(rank, plan::Weights::Experts); });
  expert_gradients_ = group_of("expert gradients",
                               [](const RankRoles& r, int rank) { return r.gradients(rank, plan::Weights::Experts); });
}

}  // namespace megatron::parallel
