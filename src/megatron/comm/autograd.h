#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/comm/group.h"

// The conjugate pairs of Megatron-LM (Shoeybi et al. 2019, section 3): what is identity one way is a collective the
// other.
namespace megatron::comm {

/// f: identity forward, all-reduce (sum) of the gradient backward.
at::Tensor copy_to_group(const at::Tensor& x, const Group& group);

/// g: all-reduce (sum) forward, identity backward.
at::Tensor reduce_from_group(const at::Tensor& x, const Group& group);

/// All-gather along `dim` forward; backward keeps this rank's part of the gradient.
at::Tensor gather_from_group(const at::Tensor& x, const Group& group, std::int64_t dim = -1);

/// Keeps this rank's part along `dim` forward; backward all-gathers the gradient.
at::Tensor scatter_to_group(const at::Tensor& x, const Group& group, std::int64_t dim = -1);

}  // namespace megatron::comm
