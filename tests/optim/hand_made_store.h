#pragma once
#include <ATen/ops/empty.h>

#include <cmath>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/optim/gradient_norm.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/buffer_layout.h"

namespace megatron::optim::testing {

/// Rank `k` of `t`: two matrices split by rows, their biases split and whole, a norm that every rank holds.
inline std::vector<plan::ParameterSpec> specs(int t = 1, int k = 0) {
  const auto split = [&](std::string name, std::vector<std::int64_t> shape, bool decay) {
    const std::int64_t length = shape[0] / t;
    return plan::ParameterSpec{.name = std::move(name),
                               .shape = std::move(shape),
                               .split_dim = 0,
                               .pieces = {{.offset = length * k, .length = length}},
                               .init = plan::Init::Normal,
                               .init_std = 1,
                               .weight_decay = decay};
  };
  const auto whole = [](std::string name, std::int64_t size) {
    return plan::ParameterSpec{
        .name = std::move(name), .shape = {size}, .init = plan::Init::One, .weight_decay = false};
  };
  return {split("first.weight", {8, 5}, true), split("first.bias", {8}, false), split("second.weight", {4, 7}, true),
          whole("second.bias", 7), whole("norm.weight", 3)};
}

inline parallel::ParameterStore store(std::int64_t bucket_size = 0, at::ScalarType dtype = at::kDouble, int t = 1,
                                      int k = 0) {
  const auto of_rank = specs(t, k);
  return parallel::ParameterStore(of_rank, plan::buffer_layout(of_rank, bucket_size), dtype, at::kCPU, 7);
}

/// Of the parts of all ranks of `group`.
inline double norm_over(const comm::Group& group, const at::Tensor& of_rank, NormOrder kind) {
  const double part = of_rank.item<double>();
  if (kind == kInf) return group.all_reduce_scalars({part}, comm::ReduceOp::Max)[0];
  return std::pow(group.all_reduce_scalars({part})[0], 1 / kind);
}

}  // namespace megatron::optim::testing
