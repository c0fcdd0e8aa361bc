#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/parallel/parameter.h"

namespace megatron::model {

/// The bucket of keys that stand `distance` after their query, as T5 has them (Raffel et al. 2020, section 2.1): the
/// nearest distances have one each, the others share those that are left by their logarithm, from `max_distance` on the
/// last. `both_ways`: half of the buckets are for keys after the query; else all that come after share the nearest.
/// Logarithms are those of float32, as in transformers.
std::int64_t relative_bucket(std::int64_t distance, bool both_ways, std::int64_t buckets, std::int64_t max_distance);

/// What a stack adds to its attention's scores: a number for each head and bucket of distances, the same in each layer.
/// The table [buckets, n] is split by heads.
class RelativeBias {
 public:
  RelativeBias(parallel::ParameterPtr table, bool both_ways, std::int64_t max_distance);

  /// What all layers of the stack add in one pass.
  struct Distances {
    at::Tensor buckets;  ///< [queries + keys - 1] int64
    /// Of this rank's heads, as kernels::AttentionOptions::bias takes them: [n/t, queries + keys - 1].
    at::Tensor values;
  };

  /// For queries whose last stands beside the last key.
  Distances between(std::int64_t queries, std::int64_t keys) const;

  /// One layer's contribution to the table's gradient: that of Distances::values.
  void add_gradient(const at::Tensor& dvalues, const at::Tensor& buckets) const;

 private:
  parallel::ParameterPtr table_;
  bool both_ways_;
  std::int64_t max_distance_;
};

}  // namespace megatron::model
