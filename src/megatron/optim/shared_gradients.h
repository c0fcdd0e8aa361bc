#pragma once
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::optim {

/// A parameter with copies on several pipeline ranks, and the ranks that hold them (of one tensor- and data-parallel
/// coordinate).
struct SharedParameter {
  parallel::ParameterPtr parameter;
  comm::Group holders;
};

/// The ranks `holders` of `pp`, ascending, which hold copies of a parameter (plan::shared_copies()). The group of one
/// on every other. Collective over `pp`.
comm::Group holders_group(const comm::Group& pp, const std::vector<int>& holders);

/// The ranks of `tp` that hold the same pieces of split parameters (plan::ShardSlice::copies): `copies` neighbours. The
/// group of one where no parameter of the store has copies. Collective over `tp`.
comm::Group copies_group(const parallel::ParameterStore& parameters, const comm::Group& tp);

/// Completes the gradients of parameters that several ranks of one model copy hold:
///
///   1. spec.sequence_partial: with sequence parallelism each tensor-parallel rank has the gradient of its part of the
///      sequence (norms, biases of row-parallel layers, learned positions). One all-reduce over `sequence` of all of
///      them, copied together.
///   2. spec.heads_partial: each tensor-parallel rank has the gradient of its own heads (norms of queries and keys).
///      One all-reduce over `heads` of all of them, copied together; of what is of an expert one over `experts`.
///   3. pieces with copies: ranks that share keys and values have the gradient of their own queries' use of them. One
///      all-reduce over `copies` of all of them, copied together.
///   4. copies on several stages (plan::shared_copies(); Megatron-LM's embedding group and its like). One all-reduce of
///      each over the holders, in place.
///
/// sum() belongs after the reduction over data-parallel ranks: that one runs while backward does, bucket by bucket,
/// and would otherwise wait for these few. Every rank of a data-parallel group then sums the same numbers in the same
/// order, so that the copies of the model stay equal bit by bit. With the distributed optimizer the owned elements
/// alone are summed: ranks of one model copy own the same elements of what they share, since their buckets have the
/// same sizes and what is shared has buckets of its own (plan::BufferPadding::alone).
class SharedGradients {
 public:
  struct Groups {
    comm::Group sequence;      ///< the tensor-parallel group with sequence parallelism, else the group of one
    comm::Group copies;        ///< copies_group()
    comm::Group heads;         ///< the tensor-parallel group
    comm::Group experts = {};  ///< the ranks that split an expert
  };
  /// `owned`: see GradientReducer. Every rank of a group names its parameters in the same order.
  SharedGradients(const parallel::ParameterStore& parameters, const std::vector<plan::Shard>& owned, Groups groups,
                  std::vector<SharedParameter> shared);

  /// Once a step, between GradientReducer::finish() and gradient_norm(): what tensor-parallel ranks share, 1 to 3, then
  /// copies on several stages.
  void sum_within_stages() const { sum(0, num_within_stages_); }
  void sum_copies() const { sum(num_within_stages_, sums_.size()); }

  /// Once the values are there (drawn, or loaded): throws std::runtime_error on every holder where two copies of a
  /// shared parameter differ in a bit. They are equal from the start without communication, since each rank draws them
  /// as a function of name and index. A few numbers per parameter are communicated.
  void check_copies() const;

 private:
  /// Gradients that are summed over the same ranks.
  struct Sum {
    comm::Group group;
    std::vector<at::Tensor> gradients;  ///< flat views of the owned elements
  };
  void sum(std::size_t begin, std::size_t end) const;

  std::vector<Sum> sums_;
  std::size_t num_within_stages_ = 0;  ///< of sums_, which come first
  std::vector<SharedParameter> shared_;
  std::vector<std::vector<at::Tensor>> values_;  ///< of each, what this rank has
};

}  // namespace megatron::optim
