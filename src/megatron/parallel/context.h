#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "megatron/comm/group.h"
#include "megatron/plan/ranks/rank_roles.h"

namespace megatron::parallel {

/// Where this rank stands and whom it may talk to, by what for (plan/ranks/rank_roles.h): a group's rank() and size()
/// say the rank's place and share. Built once, immutable, passed down by const reference to builders; a module stores
/// only the group it talks to. There is no global instance.
class ParallelContext {
 public:
  /// Collective over `world`: every rank calls it with the same grid and layout of experts.
  ParallelContext(const plan::RankGrid& grid, comm::Group world, at::Device device,
                  const plan::ExpertLayout& experts = {});

  const plan::RankGrid& grid() const { return grid_; }
  int rank() const { return world_.rank(); }

  const comm::Group& world() const { return world_; }
  const comm::Group& tensor() const { return tensor_; }        ///< the slices of this rank's weights
  const comm::Group& pipeline() const { return pipeline_; }    ///< the stages, in order
  const comm::Group& model() const { return model_; }          ///< one copy of the weights
  const comm::Group& samples() const { return samples_; }      ///< the shares of a batch
  const comm::Group& sequence() const { return sequence_; }    ///< the parts of each sequence's tokens
  const comm::Group& gradients() const { return gradients_; }  ///< over whom gradients are summed
  /// Over whom gradients of experts' weights are summed; the slices of this rank's experts; and the ranks that send one
  /// another tokens of experts: those that hold the others or, where experts are split over another number of ranks
  /// than other weights, those that hold one copy of all (plan::RankRoles::expert_copy).
  const comm::Group& expert_gradients() const { return expert_gradients_; }
  const comm::Group& expert_slices() const { return expert_slices_; }
  const comm::Group& experts() const { return experts_; }
  const comm::Group& loss() const { return gradients_; }  ///< over whom losses and tokens are summed
  /// Who divides the optimizer's state: gradients() with the distributed optimizer, else this rank alone.
  comm::Group state(bool distributed) const { return distributed ? gradients_ : comm::Group(); }
  comm::Group expert_state(bool distributed) const { return distributed ? expert_gradients_ : comm::Group(); }
  at::Device device() const { return device_; }

  /// The prefix of every error that leaves the rank.
  std::string name() const { return plan::rank_name(grid_, rank()); }

 private:
  plan::RankGrid grid_;
  comm::Group world_, tensor_, pipeline_, model_, samples_, sequence_, gradients_, experts_, expert_gradients_,
      expert_slices_;
  at::Device device_;
};

}  // namespace megatron::parallel
