#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

namespace megatron::parallel {

/// Rows of a table split over a tensor-parallel group, t = tp.size(). With a table that is not split and the group of
/// one it is a plain embedding, as the learned positions are.
///
///   weight  [rows/t, h]     rows spec.offset … of the full table
///   ids_sb  [s, b] int64    the same on every rank
///   returns [s, b, h]       the same on every rank
///
/// Communication: forward one all-reduce; backward none.
class VocabParallelEmbedding {
 public:
  /// `num_ids`: valid ids are [0, num_ids); rows past them are padding. `name`: what an id is, for the error.
  VocabParallelEmbedding(ParameterPtr weight, std::int64_t num_ids, std::string name, comm::Group tp);

  /// Throws ConfigError naming id, sample and position for an id outside [0, num_ids), before anything is sent.
  at::Tensor forward(const at::Tensor& ids_sb) const;

 private:
  ParameterPtr weight_;
  std::int64_t num_ids_;
  std::string name_;
  comm::Group tp_;
};

}  // namespace megatron::parallel
