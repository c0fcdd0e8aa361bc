#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::checkpoint {

/// How a small state is spread over tp x dp ranks (tp fastest): matrices split by rows and by columns, a vector held
/// whole, a scalar, and an embedding whose rows do not divide by tp.
struct Layout {
  int tp, dp;
  int size() const { return tp * dp; }
};

struct TensorOfState {
  const char* name;
  std::vector<std::int64_t> shape;
  int split_dim;
  at::ScalarType dtype = at::kFloat;
};

inline const std::vector<TensorOfState>& state() {
  static const std::vector<TensorOfState> tensors = {{"rows", {12, 5}, 0},        {"columns", {6, 8}, 1},
                                                     {"whole", {7}, -1},          {"scalar", {}, -1},
                                                     {"embedding", {10, 3}, 0},   {"deep", {2, 8, 3}, 1, at::kDouble},
                                                     {"half", {9}, 0, at::kHalf}, {"step", {2}, -1, at::kLong}};
  return tensors;
}

/// The full tensor: its elements are numbered from `first` on.
inline at::Tensor full_tensor(const TensorOfState& tensor, std::int64_t first) {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= size;
  return at::arange(first, first + elements, at::kLong).to(tensor.dtype).view(tensor.shape);
}

/// What rank `rank` of `layout` holds of the state: parts of ceil(size / tp) indices, the last ones shorter or empty.
inline std::vector<ShardedTensor> held_by(int rank, Layout layout, std::int64_t first, bool filled) {
  std::vector<ShardedTensor> held;
  for (const TensorOfState& tensor : state()) {
    at::Tensor data = full_tensor(tensor, first);
    std::vector<std::int64_t> offset(tensor.shape.size(), 0);
    if (tensor.split_dim >= 0) {
      const std::size_t d = static_cast<std::size_t>(tensor.split_dim);
      const std::int64_t part = (tensor.shape[d] + layout.tp - 1) / layout.tp;
      offset[d] = std::min(part * (rank % layout.tp), tensor.shape[d]);
      data = data.narrow(tensor.split_dim, offset[d], std::min(part, tensor.shape[d] - offset[d]));
    }
    held.push_back({tensor.name, tensor.shape, offset, filled ? data : at::zeros_like(data)});
  }
  return held;
}

}  // namespace megatron::checkpoint
