#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "megatron/comm/group.h"

// A few numbers that a step ends with: added up over the ranks where they were computed, and copied to the host once.
namespace megatron::comm {

/// `numbers` [n] float64 of every rank added up, or the greatest of each, where they are: the host waits for no GPU. On
/// a CPU in rank order, as Group::all_reduce_scalars() does; on a GPU in an order that the number of ranks decides, the
/// same on every rank. NaN where any is NaN. Collective over `group`.
at::Tensor reduce_numbers(const Group& group, const at::Tensor& numbers, ReduceOp op = ReduceOp::Sum);

/// Numbers on their way to the host: called once, it waits for them.
using ComingNumbers = std::function<std::vector<double>()>;

/// Begins to copy `numbers` [n] float64 to the host, in the order of the current stream of their device: what is given
/// to it from now on is not waited for.
ComingNumbers copy_to_host(const at::Tensor& numbers);

}  // namespace megatron::comm
