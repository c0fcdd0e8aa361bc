#pragma once
#include <vector>

#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::plan {

/// Rows of the full tensor that are one linear map of their own, in order: more than one range where the rows of
/// several maps take turns.
using MatrixRows = std::vector<Range>;

/// Which tensors of several linear maps are taken apart; else such a tensor is one matrix.
struct MatrixSplits {
  bool qkv = true, gated = true;
};

/// The linear maps that the parameter of a layer stores as one tensor [rows, columns]: of linear_qkv the queries',
/// their gates' if any, the keys' and the values' (of every group: its queries, gates, key, value), of linear_kv the
/// last two, of a gated linear_fc1 the gate's and the other one's; else the tensor itself. For optimizers that treat
/// each as a matrix (Muon). Throws std::logic_error where `spec` is no ParameterSpec::is_layer_matrix().
std::vector<MatrixRows> matrices_of(const ParameterSpec& spec, const ModelShape& shape,
                                    const MatrixSplits& splits = {});

}  // namespace megatron::plan
