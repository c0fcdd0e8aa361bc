#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

namespace megatron::parallel {

/// Rows of a table split over a tensor-parallel group, t = tp.size(), k = tp.rank().
///
///   weight  [rows/t, h]     rows spec.begin() … of the full table
///   ids_sb  [s, b] int64    the same on every rank
///   returns [s, b, h]       the same on every rank
///           [s/t, b, h]     with sequence_parallel: positions k*s/t … on rank k
///
/// Communication: forward one all-reduce; backward none. With sequence_parallel: forward one reduce-scatter, backward
/// one all-gather.
///
/// A table that is not split (learned positions) is a plain embedding without communication; with sequence_parallel a
/// rank looks up its own positions alone, so that the gradient is a partial sum (spec.sequence_partial).
class VocabParallelEmbedding {
 public:
  struct Options {
    bool sequence_parallel = false;  ///< s must divide by t
  };

  /// `num_ids`: valid ids are [0, num_ids); rows past them are padding. `name`: what an id is, for the error.
  VocabParallelEmbedding(ParameterPtr weight, std::int64_t num_ids, std::string name, comm::Group tp,
                         Options options = {false});

  /// Throws ConfigError naming id, sample and position for an id outside [0, num_ids), before anything is sent. `host`:
  /// the ids on the CPU, where ids_sb are on another device, which is not waited for then.
  at::Tensor forward(const at::Tensor& ids_sb, const at::Tensor& host = {}) const;

 private:
  ParameterPtr weight_;
  std::int64_t num_ids_;
  std::string name_;
  comm::Group sum_;        ///< over which rows are all-reduced
  comm::Group scatter_;    ///< over which rows are reduce-scattered along the sequence
  comm::Group positions_;  ///< over which a table that is not split divides the positions
};

}  // namespace megatron::parallel
