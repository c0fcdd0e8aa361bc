#pragma once
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

namespace megatron::optim {

/// A parameter with copies on several pipeline ranks, and the ranks that hold them (of one tensor- and data-parallel
/// coordinate).
struct SharedParameter {
  parallel::ParameterPtr parameter;
  comm::Group holders;
};

/// The ranks of `pp` that hold the tied word embedding: those of the first and of the last stage, or one rank where
/// that is one. The group of one on every other. Collective over `pp`.
comm::Group embedding_group(const comm::Group& pp, int rank_of_first_stage, int rank_of_last_stage);

/// Completes the gradients of parameters that several ranks of one model copy hold:
///
///   1. spec.sequence_partial: with sequence parallelism each tensor-parallel rank has the gradient of its part of the
///      sequence (norms, biases of row-parallel layers, learned positions). One all-reduce over `sequence` of all of
///      them, copied together.
///   2. copies on several stages: the embedding's on the first, the output layer's on the last (Megatron-LM's embedding
///      group). One all-reduce over the holders, in place.
///
/// sum() belongs after the reduction over data-parallel ranks: that one goes on while backward does, bucket by bucket,
/// and would otherwise wait for these few. Every rank of a data-parallel group then sums the same numbers in the same
/// order, so that the copies of the model stay equal bit by bit.
class SharedGradients {
 public:
  /// `sequence`: the tensor-parallel group with sequence parallelism, else the group of one. Every rank of a group
  /// names its parameters in the same order.
  SharedGradients(const parallel::ParameterStore& parameters, comm::Group sequence,
                  std::vector<SharedParameter> shared);

  /// Once a step, between GradientReducer::finish() and gradient_norm().
  void sum() const;

  /// Once the values are there (drawn, or loaded): throws std::runtime_error on every holder where two copies of a
  /// shared parameter differ in a bit. They are equal from the start without communication, since each rank draws them
  /// as a function of name and index. A few numbers a parameter are communicated.
  void check_copies() const;

 private:
  std::vector<at::Tensor> partial_;  ///< gradients, flat
  comm::Group sequence_;
  std::vector<SharedParameter> shared_;
};

}  // namespace megatron::optim
