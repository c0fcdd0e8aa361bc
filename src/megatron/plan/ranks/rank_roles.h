#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "megatron/plan/ranks/rank_grid.h"

namespace megatron::plan {

/// Weights by who holds them: dense ones every rank of a stage (or a slice of them each tensor-parallel rank), an
/// expert's those ranks of the stage that have its place in the expert-parallel group.
enum class Weights : std::uint8_t { Dense, Experts };

/// Ranks that share something, ascending, and where the rank that asks stands among them.
struct Peers {
  std::vector<int> ranks;
  int index = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

/// How the experts of a mixture of experts lie on the ranks of a stage (Megatron-Core's expert_model_parallel_size and
/// expert_tensor_parallel_size).
struct ExpertLayout {
  int ep = 1;   ///< ranks between which the experts of a layer are divided
  int etp = 0;  ///< ranks that hold a slice of one expert each; 0: as many as of other weights
};

/// What ranks have to do with one another, by what they ask for instead of by axes of the grid: whoever adds an axis
/// says here what it means. Ranks of context parallelism hold the same weights and read other tokens of the same
/// samples; experts have a grid of their own over the same ranks, in which their groups take the place of context
/// parallelism, as in Megatron-Core (parallel_state.py). Pure arithmetic.
class RankRoles {
 public:
  /// Throws ConfigError where the experts' layout does not divide the ranks of a stage, or would mix stages.
  explicit RankRoles(const RankGrid& grid, const ExpertLayout& experts = {});

  /// Ranks with the same weights that read different samples of a batch.
  Peers samples(int rank) const { return peers(grid_, rank, {Axis::Dp}); }
  /// Ranks with the same samples and weights, each with its part of their tokens.
  Peers sequence(int rank) const { return peers(grid_, rank, {Axis::Cp}); }
  /// Ranks over which the gradient of these weights is summed: they hold the same slice and see different tokens.
  Peers gradients(int rank, Weights weights = Weights::Dense) const;
  /// Ranks that divide the optimizer's state of these weights between them: those of gradients() with the distributed
  /// optimizer, else the rank alone.
  Peers state(int rank, bool distributed, Weights weights = Weights::Dense) const;
  /// Ranks over which the sum of the loss, and the number of tokens that it is of, is taken.
  Peers loss(int rank) const { return gradients(rank); }
  /// Ranks that hold the other experts of this rank's layers, and send one another tokens.
  Peers experts(int rank) const;
  /// Ranks that hold one copy of all experts of this rank's layers together: those of experts(), and who has the other
  /// slices of the same experts (Megatron-Core's expert_tensor_and_model_parallel group).
  Peers expert_copy(int rank) const;
  /// Whether experts are held by other ranks than other weights.
  bool experts_apart() const { return experts_.has_value(); }
  /// Whether an expert is split over another number of ranks than other weights are.
  bool split_otherwise() const { return experts_ && experts_->size(Axis::Tp) != grid_.size(Axis::Tp); }
  /// Ranks that hold the other slices of this rank's weights.
  Peers tensor(int rank, Weights weights = Weights::Dense) const;
  /// Ranks that hold the other stages, in the order of the pipeline.
  Peers pipeline(int rank) const { return peers(grid_, rank, {Axis::Pp}); }
  /// Ranks that hold one copy of the dense weights together.
  Peers model(int rank) const { return peers(grid_, rank, {Axis::Tp, Axis::Pp}); }

  /// The world divided by a role, groups ordered by their first rank: each rank is in one.
  using Role = std::function<Peers(const RankRoles&, int rank)>;
  std::vector<std::vector<int>> groups(const Role& role) const;

 private:
  static Peers peers(const RankGrid& grid, int rank, const std::vector<Axis>& axes);

  RankGrid grid_;
  /// Of the experts: cp is the place in the group of experts(), tp in that of a slice, dp in gradients(). None where
  /// every rank has all experts, in the same slices as other weights.
  std::optional<RankGrid> experts_;
};

}  // namespace megatron::plan
