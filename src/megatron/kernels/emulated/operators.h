#pragma once
#include "megatron/kernels/operators.h"

namespace megatron::kernels {

/// The kernels of CUDA by their host drivers, on tensors of the CPU: what --train.kernels cuda-emulated computes with.
/// Matrix products are the CPU's own. For tests: slow.
const Operators& emulated_operators();

}  // namespace megatron::kernels
